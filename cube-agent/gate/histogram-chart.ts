/**
 * Histograms as inline SVG: bars of the baseline, and the outline of the candidate in front of
 * them. The SVG contains only numbers, so nothing needs escaping.
 */
import { formatNumber } from './gate-report.ts';
import type { Histogram } from './score-drift.ts';

const WIDTH = 680;
const HEIGHT = 220;
const LEFT = 44;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 28;
const TICKS = 5;

/** @param classes CSS class of each column; the first column is drawn last, as an outline */
export function renderHistogram(histogram: Histogram, classes: readonly string[]): string {
  const { counts } = histogram;
  const highest = Math.max(1, ...counts.flat());
  const y = (count: number): number =>
    HEIGHT - BOTTOM - (count / highest) * (HEIGHT - TOP - BOTTOM);
  const behind = counts.slice(1).map((bars, i) => renderBars(bars, y, classes[i + 1] ?? ''));
  const [front = []] = counts;
  const isAlone = counts.length === 1;
  return [
    `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="histogram">`,
    ...renderGrid(highest, y),
    ...behind,
    isAlone ? renderBars(front, y, classes[0] ?? '') : renderOutline(front, y, classes[0] ?? ''),
    ...renderAxis(histogram),
    `<text x="${LEFT - 6}" y="${px(y(0) + 4)}" text-anchor="end">rows</text>`,
    '</svg>',
  ].join('\n');
}

function toX(bar: number, bars: number): number {
  return LEFT + (bar / bars) * (WIDTH - LEFT - RIGHT);
}

function renderBars(counts: readonly number[], y: (count: number) => number, name: string): string {
  const rectangles = counts.map((count, bar) => {
    if (count === 0) return '';
    const x = toX(bar, counts.length);
    const width = toX(bar + 1, counts.length) - x - 1;
    const top = px(y(count));
    const height = px(y(0) - y(count));
    const box = `x="${px(x)}" y="${top}" width="${px(width)}"`;
    return `<rect ${box} height="${height}"/>`;
  });
  return `<g class="${name}">${rectangles.join('')}</g>`;
}

/** A stepped line over the tops of the bars. */
function renderOutline(
  counts: readonly number[],
  y: (count: number) => number,
  name: string,
): string {
  const steps = counts.map((count, bar) => {
    const [from, to] = [toX(bar, counts.length), toX(bar + 1, counts.length)];
    return `L${px(from)} ${px(y(count))}L${px(to)} ${px(y(count))}`;
  });
  const end = toX(counts.length, counts.length);
  const bottom = px(y(0));
  return `<path class="${name}" d="M${LEFT} ${bottom}${steps.join('')}L${px(end)} ${bottom}"/>`;
}

function renderGrid(highest: number, y: (count: number) => number): string[] {
  return [...new Set([0, Math.round(highest / 2), highest])].map((count) => {
    const height = px(y(count));
    const ends = `x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${height}" y2="${height}"`;
    const line = `<line class="grid" ${ends}/>`;
    if (count === 0) return line;
    return `${line}<text x="${LEFT - 6}" y="${px(y(count) + 4)}" text-anchor="end">${count}</text>`;
  });
}

function renderAxis({ low, high }: Histogram): string[] {
  return Array.from({ length: TICKS }, (_, tick) => {
    const share = tick / (TICKS - 1);
    const x = toX(share, 1);
    const anchor = tick === 0 ? 'start' : tick === TICKS - 1 ? 'end' : 'middle';
    const label = formatTick(low + share * (high - low), high - low);
    return `<text x="${px(x)}" y="${HEIGHT - 8}" text-anchor="${anchor}">${label}</text>`;
  });
}

/** Rounded to a thousandth of the range, so that 0.00002 next to 1 becomes 0. */
function formatTick(value: number, range: number): string {
  const step = 10 ** Math.floor(Math.log10(range / 1_000));
  return formatNumber(Number((Math.round(value / step) * step).toPrecision(4)));
}

/** Formats an SVG coordinate. */
function px(value: number): string {
  return value.toFixed(1);
}
