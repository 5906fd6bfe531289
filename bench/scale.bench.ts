/**
 * How lookups, builds, loads and memory change with rows, shards, tables, versions, deltas, keys of
 * a request, and connections: a table for each curve, and charts with `--output`. The servers share
 * one core, the client has another. Throughput is that of a closed loop of 64 calls over packed
 * lookups with checksums, latency that of an open loop at a quarter of it.
 */
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { pinSelf } from './support/cube-server-process.ts';
import {
  type Curve,
  formatHead,
  formatRow,
  type MeasuredPoint,
  selectCurves,
  writeCharts,
} from './support/scale-curves.ts';
import { measurePoint } from './support/scale-point.ts';

const CLIENT_CORE = 1;
const ROWS_MAX = '10000000';

async function runCurve(curve: Curve): Promise<MeasuredPoint[]> {
  const measured: MeasuredPoint[] = [];
  process.stdout.write(`\n${curve.name}:\n\n${formatHead(curve)}`);
  for (const [i, at] of curve.points.entries()) {
    const place = `${i + 1} of ${curve.points.length}`;
    process.stderr.write(`${curve.name} ${at.toLocaleString('en')} (${place})\n`);
    const point = { at, figures: await measurePoint(curve.createPoint(at)) };
    measured.push(point);
    process.stdout.write(formatRow(point));
  }
  return measured;
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      curve: { type: 'string', multiple: true, default: [] },
      'rows-max': { type: 'string', default: ROWS_MAX },
      output: { type: 'string' },
    },
  });
  const curves = selectCurves(values.curve, Number(values['rows-max']));
  pinSelf(CLIENT_CORE);
  for (const curve of curves) {
    const measured = await runCurve(curve);
    if (values.output !== undefined) writeCharts(values.output, curve, measured);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
