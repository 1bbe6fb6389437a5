"use strict";

// "2 x 650" means two layers of 650, "batch 32" or "B = 32" a batch of 32, as cases' names have them: L2, H650, B32.
const names = { layers: "L", layer: "L", hidden: "H", batch: "B", steps: "T", input: "I" };

function terms(text) {
  const named = text
    .replace(/\b(\d+)\s*[x\u00d7]\s*(\d+)\b/gi, "L$1 H$2")
    .replace(/\b(\d+)\s+layers?\b/gi, "L$1")
    .replace(/\b(layers?|hidden|batch|steps|input)\s*=?\s*(\d)/gi, (_, word, digit) => names[word.toLowerCase()] + digit)
    .replace(/\b([tbhil])\s*=?\s*(\d)/gi, "$1$2");
  return named.toLowerCase().split(/[\s,;-]+/).filter(Boolean);
}

// A name has no L1, no mode of inference. A number alone is any size.
function matches(tokens, wanted) {
  return wanted.every((term) => {
    if (term === "l1") return !tokens.some((token) => /^l\d+$/.test(token));
    if (term === "inference") return !tokens.includes("training");
    if (/^\d+$/.test(term)) return tokens.some((token) => token.replace(/^[a-z]+/, "") === term);
    return tokens.some((token) => (/\d$/.test(term) ? token === term : token.startsWith(term)));
  });
}

for (const form of document.querySelectorAll(".search")) {
  const input = form.querySelector("input");
  const lines = [...form.parentElement.querySelectorAll(".searched tbody tr")].map((line) => ({
    line,
    tokens: `${line.dataset.case}-${line.dataset.names}`.toLowerCase().split(/[- ]+/),
  }));

  const filter = () => {
    const wanted = terms(input.value);
    let shown = 0;
    for (const { line, tokens } of lines) {
      line.hidden = !matches(tokens, wanted);
      shown += !line.hidden;
    }
    form.querySelector("output").textContent = `${shown} of ${lines.length} rows`;
  };

  const update = () => {
    filter();
    const given = input.value ? `#${new URLSearchParams({ search: input.value })}` : location.pathname + location.search;
    history.replaceState(null, "", given);
  };

  // A link to a row shows all rows, and leaves the address as it is.
  const read = () => {
    const address = location.hash.slice(1);
    const linked = address && document.getElementById(address);
    input.value = linked ? "" : (new URLSearchParams(address).get("search") ?? "");
    filter();
    if (linked) linked.scrollIntoView();
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  input.addEventListener("input", update);
  addEventListener("hashchange", read);
  form.hidden = false;
  read();
}
