"use strict";

// "2 x 650" means two layers of 650, "B 32" a batch of 32, as cases' names have them: L2, H650, B32.
function terms(text) {
  const named = text
    .replace(/\b(\d+)\s*[x\u00d7]\s*(\d+)\b/gi, (_, layers, hidden) => (layers === "1" ? `H${hidden}` : `L${layers} H${hidden}`))
    .replace(/\b([tbhil])\s+(\d)/gi, "$1$2");
  return named.toLowerCase().split(/[\s,;-]+/).filter(Boolean);
}

function matches(tokens, wanted) {
  return wanted.every((term) => tokens.some((token) => (/\d$/.test(term) ? token === term : token.startsWith(term))));
}

for (const form of document.querySelectorAll(".search")) {
  const input = form.querySelector("input");
  const lines = [...form.parentElement.querySelectorAll(".searched tbody tr")].map((line) => ({
    line,
    tokens: line.dataset.case.toLowerCase().split("-"),
  }));

  const update = () => {
    const wanted = terms(input.value);
    let shown = 0;
    for (const { line, tokens } of lines) {
      line.hidden = !matches(tokens, wanted);
      shown += !line.hidden;
    }
    form.querySelector("output").textContent = `${shown} of ${lines.length} rows`;
    const given = input.value ? `#${new URLSearchParams({ search: input.value })}` : location.pathname + location.search;
    history.replaceState(null, "", given);
  };

  const read = () => {
    const address = location.hash.slice(1);
    const linked = address && document.getElementById(address);
    input.value = linked ? "" : (new URLSearchParams(address).get("search") ?? "");
    if (!linked) update();
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  input.addEventListener("input", update);
  addEventListener("hashchange", read);
  form.hidden = false;
  read();
}
