/**
 * Renders line charts as self-contained SVG: a line for each series over a common x axis, axes with
 * round ticks, and names at the ends of the lines.
 */
import { requireDefined } from '../../../lib/core/errors.ts';

export interface Series {
  readonly name: string;
  /** Points in ascending order of x. */
  readonly points: readonly (readonly [x: number, y: number])[];
}

export interface LineChart {
  readonly title: string;
  readonly xLabel: string;
  readonly yLabel: string;
  /** Ticks of the x axis; the first and last are its ends. */
  readonly xTicks: readonly number[];
  /** Labels of the ticks instead of their numbers. */
  readonly xTickNames?: readonly string[];
  /** Logarithmic x axis, for sizes and counts. */
  readonly xIsLog?: boolean;
  readonly series: readonly Series[];
  /** Draws a dashed line where x = y. */
  readonly diagonal?: boolean;
}

const CHART_WIDTH = 520;
const CHART_HEIGHT = 340;
const LEFT = 72;
const RIGHT = 92;
const TOP = 44;
const BOTTOM = 52;
/** The palette of Okabe and Ito, for readers with colour blindness. */
const COLOURS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#444444'];
/** Minimum vertical distance of names at the ends of lines. */
const LABEL_GAP = 13;
const TICKS = 5;

/** One chart as a group of a drawing. */
function renderChart(chart: LineChart): string {
  const yTicks = computeTicks(chart.series.flatMap(({ points }) => points.map(([, y]) => y)));
  const x = createXScale(chart);
  const yMax = Math.max(...yTicks);
  const y = (value: number): number =>
    CHART_HEIGHT - BOTTOM - (value / yMax) * (CHART_HEIGHT - TOP - BOTTOM);
  const right = CHART_WIDTH - RIGHT;
  const middle = (LEFT + right) / 2;
  const bottom = CHART_HEIGHT - BOTTOM;
  const grid = yTicks.map(
    (tick) =>
      `<line x1="${LEFT}" x2="${right}" y1="${y(tick)}" y2="${y(tick)}" stroke="#ddd"/>` +
      `<text x="${LEFT - 8}" y="${y(tick) + 4}" text-anchor="end">${formatTick(tick)}</text>`,
  );
  const columns = chart.xTicks.map(
    (tick, i) =>
      `<line x1="${x(tick)}" x2="${x(tick)}" y1="${bottom}" y2="${bottom + 5}" stroke="#888"/>` +
      `<text x="${x(tick)}" y="${bottom + 19}" text-anchor="middle">` +
      `${chart.xTickNames?.[i] ?? formatTick(tick)}</text>`,
  );
  const end = Math.min(yMax, chart.xTicks.at(-1) ?? yMax);
  const diagonal = chart.diagonal
    ? [
        `<line x1="${x(0)}" y1="${y(0)}" x2="${x(end)}" y2="${y(end)}" stroke="#999" ` +
          'stroke-dasharray="5 4"/>',
      ]
    : [];
  return [
    `<text x="${middle}" y="22" text-anchor="middle" font-size="15" font-weight="bold">` +
      `${escapeXml(chart.title)}</text>`,
    ...grid,
    ...columns,
    `<line x1="${LEFT}" x2="${right}" y1="${bottom}" y2="${bottom}" stroke="#888"/>`,
    `<text x="${middle}" y="${CHART_HEIGHT - 12}" text-anchor="middle">` +
      `${escapeXml(chart.xLabel)}</text>`,
    `<text transform="translate(16 ${(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">` +
      `${escapeXml(chart.yLabel)}</text>`,
    ...diagonal,
    ...renderSeries(chart.series, x, y),
  ].join('\n');
}

/** Charts side by side. */
export function renderCharts(charts: readonly LineChart[]): string {
  const width = CHART_WIDTH * charts.length;
  const groups = charts.map(
    (chart, i) => `<g transform="translate(${i * CHART_WIDTH} 0)">\n${renderChart(chart)}\n</g>`,
  );
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${CHART_HEIGHT}" width="${width}" ` +
      `height="${CHART_HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="#222">`,
    `<title>${escapeXml(charts.map(({ title }) => title).join(', '))}</title>`,
    `<rect width="${width}" height="${CHART_HEIGHT}" fill="#fff"/>`,
    ...groups,
    '</svg>',
    '',
  ].join('\n');
}

export function escapeXml(text: string): string {
  const entities: Record<string, string> = {
    '&': '&amp;',
    '<': '&lt;',
    '>': '&gt;',
    '"': '&quot;',
  };
  return text.replace(/[&<>"]/g, (character) => entities[character] ?? character);
}

function renderSeries(
  series: readonly Series[],
  x: (value: number) => number,
  y: (value: number) => number,
): string[] {
  const drawn = series.filter(({ points }) => points.length > 0);
  const labelY = spreadLabels(drawn.map(({ points }) => y(points.at(-1)?.[1] ?? 0)));
  return drawn.map(({ name, points }, i) => {
    const labelTop = requireDefined(labelY[i], 'the position of a label') + 4;
    const colour = requireDefined(COLOURS[i % COLOURS.length], 'a colour');
    const positions = points.map(([px, py]) => [round(x(px)), round(y(py))] as const);
    const dots = positions.map(
      ([cx, cy]) => `<circle cx="${cx}" cy="${cy}" r="3" fill="${colour}"/>`,
    );
    const label =
      `<text x="${CHART_WIDTH - RIGHT + 8}" y="${round(labelTop)}" fill="${colour}">` +
      `${escapeXml(name)}</text>`;
    const path = positions.map((position) => position.join(',')).join(' ');
    const line = `<polyline points="${path}" fill="none" stroke="${colour}" stroke-width="2"/>`;
    return `${line}${dots.join('')}${label}`;
  });
}

/** Moves labels down until none overlap. */
function spreadLabels(positions: readonly number[]): number[] {
  const moved = [...positions];
  let previous = Number.NEGATIVE_INFINITY;
  for (const [i, position] of [...positions.entries()].sort(([, a], [, b]) => a - b)) {
    previous = Math.max(position, previous + LABEL_GAP);
    moved[i] = previous;
  }
  return moved;
}

function createXScale({ xTicks, xIsLog }: LineChart): (value: number) => number {
  const at = (value: number): number => (xIsLog ? Math.log2(value) : value);
  const [first = 0] = xTicks;
  const from = at(first);
  const to = at(xTicks.at(-1) ?? first);
  const width = CHART_WIDTH - LEFT - RIGHT;
  return (value) =>
    round(LEFT + (to === from ? width / 2 : ((at(value) - from) / (to - from)) * width));
}

/** From 0 to at least the largest value, in steps of 1, 2, 2.5 or 5 and a power of ten. */
export function computeTicks(values: readonly number[]): number[] {
  const max = Math.max(...values, 0) || 1;
  const power = 10 ** Math.floor(Math.log10(max / TICKS));
  const steps = [1, 2, 2.5, 5].map((n) => n * power);
  const step = steps.find((size) => size * TICKS >= max) ?? 10 * power;
  const count = Math.max(1, Math.ceil(max / step));
  return Array.from({ length: count + 1 }, (_, i) => Number((i * step).toPrecision(6)));
}

function formatTick(value: number): string {
  if (value >= 1e6) return `${Number((value / 1e6).toFixed(2))} M`;
  return value >= 1e4 ? `${Number((value / 1e3).toFixed(1))} k` : String(value);
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
