/* Classes of items by the values of a column: the colours of the map and its legend. */

import { words } from "./page.js";

const MOST_CLASSES = 10; // of values that are names of something
const NUM_RANGES = 5; // of values that are quantities

/** The class of each item by the values of a column, and what the classes are called.

    `of` has the number of each item's class, -1 for others; `legend` the classes in order. */
export function classesOf(values) {
  const sizes = new Map();
  for (const value of values) {
    if (!isNone(value)) sizes.set(value, (sizes.get(value) ?? 0) + 1);
  }
  const bySize = [...sizes].sort((a, b) => b[1] - a[1]), frequent = bySize.slice(0, MOST_CLASSES);
  if (bySize.length > MOST_CLASSES && isQuantity(bySize, frequent)) return rangesOf(values);
  const indices = new Map(frequent.map(([value], index) => [value, index]));
  const of = values.map((value) => indices.get(value) ?? -1);
  const legend = frequent.map(([value, size], index) =>
    ({ index, kind: `m${index}`, label: words(value, 60), size }));
  return withOthers(of, legend, frequent.length < bySize.length ? "other or none" : "none");
}

const isNone = (value) => value === null || value === undefined || String(value).trim() === "";
const sum = (sizes) => sizes.reduce((all, [, size]) => all + size, 0);

/** Whether values, `[value, size]`, are numbers to be ordered.

    Whole numbers in texts may be keys of groups, but not if the most `frequent` are few. */
function isQuantity(sizes, frequent) {
  if (sizes.every(([value]) => typeof value === "number")) return true;
  const decimal = /^\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*$/i;
  const texts = sizes.map(([value]) => String(value));
  if (!texts.every((text) => decimal.test(text) && Number.isFinite(Number(text)))) return false;
  return texts.some((text) => text.includes(".")) || sum(frequent) < sum(sizes) / 2;
}

/** Classes that are ranges of numbers with about equally many items, the highest first. */
function rangesOf(values) {
  const numbers = values.map((value) => (isNone(value) ? NaN : Number(value)));
  const sorted = numbers.filter(Number.isFinite).sort((a, b) => a - b);
  const starts = rangeStarts(sorted), text = numberText(sorted);
  const legend = starts.map((start, index) => {
    const end = starts[index + 1] ?? sorted.length;
    const [low, high] = [text(sorted[start]), text(sorted[end - 1])];
    const kind = `q${Math.round(((NUM_RANGES - 1) * index) / Math.max(1, starts.length - 1))}`;
    return { index, kind, label: low === high ? low : `${low} – ${high}`, size: end - start };
  });
  const edges = starts.slice(1).map((start) => sorted[start]);
  const range = (number) => edges.filter((edge) => number >= edge).length;
  const of = numbers.map((number) => (Number.isFinite(number) ? range(number) : -1));
  return withOthers(of, legend.reverse(), "none");
}

/** Where ranges begin in sorted numbers: each has its share of what is left, equal numbers are in
    the same. */
function rangeStarts(sorted) {
  const starts = [0];
  while (starts.length < NUM_RANGES) {
    const start = starts.at(-1), left = NUM_RANGES - starts.length + 1;
    const aim = start + Math.floor((sorted.length - start) / left);
    const low = sorted.indexOf(sorted[aim]), high = sorted.lastIndexOf(sorted[aim]) + 1;
    const next = low > start && aim - low <= high - aim ? low : high;
    if (next >= sorted.length) break;
    starts.push(next);
  }
  return starts;
}

/** A function that writes numbers such as these, with as many digits as tell them apart. */
function numberText(sorted) {
  const exponent = (number) => Math.floor(Math.log10(Math.abs(number) || 1));
  const whole = sorted.every(Number.isInteger), spread = sorted.at(-1) - sorted[0];
  return (number) => {
    const digits = 2 - Math.min(exponent(spread), exponent(number));
    const maximumFractionDigits = whole ? 0 : Math.min(Math.max(digits, 0), 12);
    return number.toLocaleString("en", { maximumFractionDigits, useGrouping: "min2" }); // 1998
  };
}

function withOthers(of, legend, label) {
  const size = of.filter((index) => index === -1).length;
  if (size) legend.push({ index: -1, kind: "other", label, size });
  return { of, legend };
}

/** The first column that puts most items into at least two classes. */
export function bestColumn(columns) {
  const good = Object.entries(columns).find(([, values]) => {
    const { of, legend } = classesOf(values);
    return legend.length > 1 && of.filter((index) => index === -1).length < of.length / 2;
  });
  return good ? good[0] : null;
}
