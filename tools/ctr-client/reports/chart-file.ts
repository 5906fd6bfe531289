/**
 * The chart of a run: an `.svg` drawing, or a self-contained `.html` page with drawing and tables.
 */
import { replaceFile } from '../../../lib/platform/files.ts';
import {
  computeTicks,
  escapeXml,
  type LineChart,
  renderCharts,
  type Series,
} from './line-chart.ts';
import type { Quality } from './quality.ts';
import type { Report } from './report.ts';

export interface ChartPage {
  readonly title: string;
  readonly charts: readonly LineChart[];
  /** The printed report. */
  readonly text: string;
}

const PERCENTILES = ['p50', 'p80', 'p90', 'p99', 'p99.9', 'max'];
const STYLE =
  'body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2rem auto;' +
  'padding:0 1rem;color:#222}' +
  'svg{max-width:100%;height:auto}pre{background:#f6f6f6;padding:1rem;overflow-x:auto}';

/** Written completely or not at all. @param path ends in .svg or .html */
export function writeChart(path: string, page: ChartPage): void {
  const svg = renderCharts(page.charts);
  replaceFile(path, path.endsWith('.svg') ? svg : pageHtml(page, svg));
}

function pageHtml({ title, text }: ChartPage, svg: string): string {
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>${escapeXml(title)}</title>
<style>${STYLE}</style>
<h1>${escapeXml(title)}</h1>
${svg}
<pre>${escapeXml(text)}</pre>
</html>
`;
}

/** Throughput and p99 by concurrency, with a line for each batch size. */
export function matrixCharts(cells: readonly Report[]): LineChart[] {
  const batches = [...new Set(cells.map(({ batch }) => batch))];
  const xTicks = [...new Set(cells.map(({ concurrency }) => concurrency))].sort((a, b) => a - b);
  const chart = (title: string, yLabel: string, y: (cell: Report) => number): LineChart => ({
    title,
    yLabel,
    xTicks,
    xIsLog: true,
    xLabel: 'requests in flight',
    series: batches.map((batch) => ({
      name: `${batch} ${batch === 1 ? 'row' : 'rows'}`,
      points: cells
        .filter((cell) => cell.batch === batch && cell.requests > cell.failed)
        .map((cell) => [cell.concurrency, y(cell)] as const)
        .sort(([a], [b]) => a - b),
    })),
  });
  return [
    chart('Throughput', 'rows/s', (cell) => cell.rowsPerSecond),
    chart('Latency, p99', 'ms', ({ latencyMs }) => latencyMs.p99),
  ];
}

/** Latency by percentile, and calibration if there are labels; a line for each report. */
export function runCharts(reports: readonly Report[]): LineChart[] {
  const getName = (i: number): string => {
    if (reports.length === 1) return '';
    return i === 0 ? 'endpoint' : 'against';
  };
  const latency: LineChart = {
    title: 'Latency',
    xLabel: 'percentile',
    yLabel: 'ms',
    xTicks: PERCENTILES.map((_, i) => i),
    xTickNames: PERCENTILES,
    series: reports.map(({ latencyMs }, i) => {
      const { p50, p80, p90, p99, p999, max } = latencyMs;
      const points = [p50, p80, p90, p99, p999, max].map((ms, at) => [at, ms] as const);
      return { name: getName(i), points };
    }),
  };
  const calibration = calibrationChart(
    reports.map(({ calibrationBuckets: buckets }, i) => ({
      name: getName(i),
      points: buckets?.map(toPoint) ?? [],
    })),
  );
  return calibration === undefined ? [latency] : [latency, calibration];
}

/** @returns undefined without labels */
function calibrationChart(series: readonly Series[]): LineChart | undefined {
  const values = series.flatMap(({ points }) => points.flat());
  if (values.length === 0) return undefined;
  const title = 'Calibration: ten buckets of equal size';
  const xTicks = computeTicks(values);
  return { title, xLabel: 'mean score', yLabel: 'click rate', xTicks, series, diagonal: true };
}

function toPoint({ meanPrediction, clickRate }: Quality['buckets'][number]): [number, number] {
  return [meanPrediction, clickRate];
}
