/** Histograms as inline SVG: bars of the baseline behind, the candidate's outline before them. Coordinates are numbers alone. */
import { shown } from './gate-report.ts';
import type { Histogram } from './score-drift.ts';

const WIDTH = 680;
const HEIGHT = 220;
const LEFT = 44;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 28;
const TICKS = 5;

/** @param classes of each column, in their order; the first is drawn last, as a line */
export function histogramChart(histogram: Histogram, classes: readonly string[]): string {
  const { counts } = histogram;
  const highest = Math.max(1, ...counts.flat());
  const y = (count: number): number =>
    HEIGHT - BOTTOM - (count / highest) * (HEIGHT - TOP - BOTTOM);
  const behind = counts.slice(1).map((bars, i) => barsOf(bars, y, classes[i + 1] ?? ''));
  const [front = []] = counts;
  const isAlone = counts.length === 1;
  return [
    `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="histogram">`,
    ...gridOf(highest, y),
    ...behind,
    isAlone ? barsOf(front, y, classes[0] ?? '') : outlineOf(front, y, classes[0] ?? ''),
    ...axisOf(histogram),
    `<text x="${LEFT - 6}" y="${at(y(0) + 4)}" text-anchor="end">rows</text>`,
    '</svg>',
  ].join('\n');
}

function xOf(bar: number, bars: number): number {
  return LEFT + (bar / bars) * (WIDTH - LEFT - RIGHT);
}

function barsOf(counts: readonly number[], y: (count: number) => number, name: string): string {
  const rectangles = counts.map((count, bar) => {
    if (count === 0) return '';
    const x = xOf(bar, counts.length);
    const width = xOf(bar + 1, counts.length) - x - 1;
    return `<rect x="${at(x)}" y="${at(y(count))}" width="${at(width)}" height="${at(y(0) - y(count))}"/>`;
  });
  return `<g class="${name}">${rectangles.join('')}</g>`;
}

/** A stepped line over the tops of the bars. */
function outlineOf(counts: readonly number[], y: (count: number) => number, name: string): string {
  const steps = counts.map((count, bar) => {
    const [from, to] = [xOf(bar, counts.length), xOf(bar + 1, counts.length)];
    return `L${at(from)} ${at(y(count))}L${at(to)} ${at(y(count))}`;
  });
  const end = xOf(counts.length, counts.length);
  return `<path class="${name}" d="M${LEFT} ${at(y(0))}${steps.join('')}L${at(end)} ${at(y(0))}"/>`;
}

function gridOf(highest: number, y: (count: number) => number): string[] {
  return [...new Set([0, Math.round(highest / 2), highest])].map((count) => {
    const line = `<line class="grid" x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${at(y(count))}" y2="${at(y(count))}"/>`;
    if (count === 0) return line;
    return `${line}<text x="${LEFT - 6}" y="${at(y(count) + 4)}" text-anchor="end">${count}</text>`;
  });
}

function axisOf({ low, high }: Histogram): string[] {
  return Array.from({ length: TICKS }, (_, tick) => {
    const share = tick / (TICKS - 1);
    const x = xOf(share, 1);
    const anchor = tick === 0 ? 'start' : tick === TICKS - 1 ? 'end' : 'middle';
    const label = tickText(low + share * (high - low), high - low);
    return `<text x="${at(x)}" y="${HEIGHT - 8}" text-anchor="${anchor}">${label}</text>`;
  });
}

/** Rounded to a thousandth of the range: beside 1, 0.00002 is 0. */
function tickText(value: number, range: number): string {
  const step = 10 ** Math.floor(Math.log10(range / 1_000));
  return shown(Number((Math.round(value / step) * step).toPrecision(4)));
}

function at(value: number): string {
  return value.toFixed(1);
}
