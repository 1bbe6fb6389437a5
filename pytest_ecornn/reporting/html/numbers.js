"use strict";

// Numbers as the tables write them: three digits, and a unit that fits.

const timeUnits = [[1e6, "s"], [1e3, "ms"], [1, "us"]];
const fixed = (value, digits) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

function decimalsOf(value) {
  const rounded = Math.abs(Number(value.toPrecision(3))); // 9.996 is written as 10.0
  return rounded > 0 && rounded < Infinity ? Math.max(0, 2 - Math.floor(Math.log10(rounded))) : 0;
}

const significant = (value) => fixed(value, decimalsOf(value));

const unitOf = (time) => timeUnits.find(([least]) => Number(time.toPrecision(3)) >= least) ?? timeUnits.at(-1);

function duration(time) {
  const [scale, unit] = unitOf(time);
  return `${significant(time / scale)} ${unit}`;
}

// Both ends in the unit and to the digits of the time, as `formatting.duration_interval` does.
function durationInterval(time, low, high) {
  const known = time ?? NaN;
  const [scale] = unitOf(known);
  const ends = [low, high].map((end) => fixed((end ?? NaN) / scale, decimalsOf(known / scale)));
  return `${duration(known)} [${ends.join(", ")}]`;
}
