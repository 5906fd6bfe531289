/** The curves of `npm run bench -- scale`: their points, tables and charts. */
import { join } from 'node:path';
import { makeFolder, replaceFile } from '../../lib/platform/files.ts';
import { type LineChart, renderCharts } from '../../tools/ctr-client/reports/line-chart.ts';
import type { PointFigures, ScalePoint } from './scale-point.ts';

const MILLION = 1_000_000;
const BASE: ScalePoint = {
  rows: MILLION,
  shards: 1,
  tables: 1,
  deltas: 0,
  versions: 1,
  keys: 260,
  connections: 1,
};
/** Requests large enough to be worth spreading over shards or tables. */
const SPREAD_KEYS = 1_000;

export interface Curve {
  readonly name: string;
  /** Name of what changes, for the table and the x axis. */
  readonly label: string;
  readonly points: readonly number[];
  /** Logarithmic x axis. */
  readonly isLog: boolean;
  /** Build, load and memory change with the points, and have a chart. */
  readonly changesTables: boolean;
  createPoint(at: number): ScalePoint;
}

const CURVES: readonly Curve[] = [
  {
    name: 'rows',
    label: 'rows',
    points: [0.1, 0.3, 1, 3, 10, 30, 100].map((millions) => millions * MILLION),
    isLog: true,
    changesTables: true,
    createPoint: (rows) => ({ ...BASE, rows }),
  },
  {
    name: 'shards',
    label: 'shards',
    points: [1, 2, 4, 8, 16],
    isLog: true,
    changesTables: false,
    createPoint: (shards) => ({ ...BASE, shards, keys: SPREAD_KEYS }),
  },
  {
    name: 'tables',
    label: 'tables',
    points: [1, 10, 100, 1_000],
    isLog: true,
    changesTables: true,
    createPoint: (tables) => ({ ...BASE, tables, keys: SPREAD_KEYS }),
  },
  {
    name: 'versions',
    label: 'versions in memory',
    points: [1, 2, 3],
    isLog: false,
    changesTables: true,
    createPoint: (versions) => ({ ...BASE, versions }),
  },
  {
    name: 'deltas',
    label: 'deltas in the chain',
    points: [0, 1, 2, 4, 8],
    isLog: false,
    changesTables: true,
    createPoint: (deltas) => ({ ...BASE, deltas }),
  },
  {
    name: 'batch',
    label: 'keys of a request',
    points: [1, 4, 16, 64, 256, 1_024, 4_096],
    isLog: true,
    changesTables: false,
    createPoint: (keys) => ({ ...BASE, keys }),
  },
  {
    name: 'connections',
    label: 'connections',
    points: [1, 10, 100, 1_000],
    isLog: true,
    changesTables: false,
    createPoint: (connections) => ({ ...BASE, connections }),
  },
];

export const CURVE_NAMES: readonly string[] = CURVES.map(({ name }) => name);

/**
 * Leaves out points with more rows.
 * @param names all curves when empty
 */
export function selectCurves(names: readonly string[], rowsMax: number): Curve[] {
  return CURVES.filter(({ name }) => names.length === 0 || names.includes(name)).map((curve) => ({
    ...curve,
    points: curve.points.filter((at) => curve.createPoint(at).rows <= rowsMax),
  }));
}

export interface MeasuredPoint {
  readonly at: number;
  readonly figures: PointFigures;
}

interface Column {
  readonly title: string;
  format(figures: PointFigures): string;
}

const COLUMNS: readonly Column[] = [
  { title: 'build, s', format: ({ buildSeconds }) => formatFigure(buildSeconds) },
  { title: 'load, s', format: ({ loadSeconds }) => formatFigure(loadSeconds) },
  { title: 'tables, MiB', format: ({ memoryMiB }) => formatFigure(memoryMiB) },
  { title: 'resident, MiB', format: ({ residentMiB }) => formatFigure(residentMiB) },
  { title: 'M keys/s', format: ({ keysPerSecond }) => formatFigure(keysPerSecond / MILLION) },
  {
    title: 'M keys per CPU s',
    format: ({ keysPerCpuSecond }) => formatFigure(keysPerCpuSecond / MILLION),
  },
  { title: 'p50, ms', format: ({ p50Ms }) => formatFigure(p50Ms) },
  { title: 'p99, ms', format: ({ p99Ms }) => formatFigure(p99Ms) },
];

/** Three significant digits. */
function formatFigure(value: number): string {
  return Number(value.toPrecision(3)).toLocaleString('en');
}

/** The head of a curve's table in Markdown. */
export function formatHead({ label }: Curve): string {
  const titles = [label, ...COLUMNS.map(({ title }) => title)];
  return `| ${titles.join(' | ')} |\n|${' ---: |'.repeat(titles.length)}\n`;
}

export function formatRow({ at, figures }: MeasuredPoint): string {
  const cells = [at.toLocaleString('en'), ...COLUMNS.map(({ format }) => format(figures))];
  return `| ${cells.join(' | ')} |\n`;
}

/** Writes `scale-<name>.svg`, and `scale-<name>-load.svg` if the tables change. */
export function writeCharts(
  folder: string,
  curve: Curve,
  measured: readonly MeasuredPoint[],
): void {
  makeFolder(folder);
  const chart = (
    title: string,
    yLabel: string,
    lines: Readonly<Record<string, (figures: PointFigures) => number>>,
  ): LineChart => ({
    title,
    yLabel,
    xLabel: curve.label,
    xTicks: measured.map(({ at }) => at),
    xIsLog: curve.isLog,
    series: Object.entries(lines).map(([name, pick]) => ({
      name,
      points: measured.map(({ at, figures }) => [at, pick(figures)] as const),
    })),
  });
  const lookups = [
    chart('Throughput', 'million keys per CPU second', {
      '': ({ keysPerCpuSecond }) => keysPerCpuSecond / MILLION,
    }),
    chart('Latency at a quarter of capacity', 'ms', {
      p99: ({ p99Ms }) => p99Ms,
      p50: ({ p50Ms }) => p50Ms,
    }),
  ];
  replaceFile(join(folder, `scale-${curve.name}.svg`), renderCharts(lookups));
  if (!curve.changesTables) return;
  const loads = [
    chart('Build and load', 'seconds', {
      build: ({ buildSeconds }) => buildSeconds,
      load: ({ loadSeconds }) => loadSeconds,
    }),
    chart('Memory', 'MiB', {
      resident: ({ residentMiB }) => residentMiB,
      tables: ({ memoryMiB }) => memoryMiB,
    }),
  ];
  replaceFile(join(folder, `scale-${curve.name}-load.svg`), renderCharts(loads));
}
