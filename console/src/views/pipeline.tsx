/** The ops of a pipeline as a graph, with their rates, times and queues. */
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Connection } from '../connection.ts';
import { formatCount, formatExact, formatMs } from '../format.ts';
import type { Pipeline } from '../types.ts';

type PipelineOp = Pipeline['ops'][number];

/** Sizes in units of the drawing, which are pixels at full width. */
const BOX = { width: 190, height: 92 };
const GAP = { x: 60, y: 22 };
const WINDOW_MS = 10_000;

export function PipelineView({ connection }: { connection: Connection }): JSX.Element {
  const { pipeline } = connection.state;
  const before = useEarlier(pipeline);
  if (pipeline === undefined) return <p class="empty">This process has no pipeline.</p>;
  const { name, running, ops } = pipeline;
  return (
    <>
      <div class="toolbar">
        <h2>Pipeline</h2>
        <span class="badge note">{formatCount(running)} requests in progress</span>
      </div>
      <section class="card">
        <h3>
          {name}
          <small class="muted">rates and times of the last ten seconds</small>
        </h3>
        <Graph ops={ops} before={before} />
      </section>
    </>
  );
}

interface Reading {
  readonly timeMs: number;
  readonly ops: readonly PipelineOp[];
}

/** The counts of some seconds ago. */
function useEarlier(pipeline: Pipeline | undefined): Reading | undefined {
  const readings = useRef<Reading[]>([]);
  const [before, setBefore] = useState<Reading>();
  useEffect(() => {
    if (pipeline === undefined) return;
    const timeMs = Date.now();
    const kept = readings.current.filter((reading) => timeMs - reading.timeMs <= WINDOW_MS);
    readings.current = [...kept, { timeMs, ops: pipeline.ops }];
    setBefore(readings.current[0]);
  }, [pipeline]);
  return before;
}

interface Box {
  readonly op: PipelineOp | undefined;
  readonly name: string;
  readonly x: number;
  readonly y: number;
}

/** A column for each stage: the request, the ops, the response. */
function placeBoxes(ops: readonly PipelineOp[]): Box[] {
  const columns = new Map<number, PipelineOp[]>();
  for (const op of ops) columns.set(op.stage, [...(columns.get(op.stage) ?? []), op]);
  const rows = Math.max(1, ...[...columns.values()].map(({ length }) => length));
  const last = Math.max(0, ...columns.keys()) + 1;
  const place = (column: number, row: number, count: number): { x: number; y: number } => ({
    x: column * (BOX.width + GAP.x),
    y: ((rows - count) / 2 + row) * (BOX.height + GAP.y),
  });
  return [
    { op: undefined, name: 'request', ...place(0, 0, 1) },
    ...[...columns].flatMap(([stage, column]) =>
      column.map((op, row) => ({ op, name: op.name, ...place(stage, row, column.length) })),
    ),
    { op: undefined, name: 'response', ...place(last, 0, 1) },
  ];
}

function listEdges(ops: readonly PipelineOp[], boxes: readonly Box[]): [Box, Box][] {
  const byName = new Map(boxes.filter(({ op }) => op !== undefined).map((box) => [box.name, box]));
  const [request] = boxes;
  const response = boxes.at(-1);
  const read = new Set(ops.flatMap(({ inputs }) => inputs));
  return ops.flatMap((op) => {
    const to = byName.get(op.name);
    const from = op.inputs.length === 0 ? [request] : op.inputs.map((name) => byName.get(name));
    const edges = from.map((box) => [box, to]);
    if (!read.has(op.name)) edges.push([to, response]);
    return edges.filter((edge): edge is [Box, Box] => edge.every((box) => box !== undefined));
  });
}

function Graph({
  ops,
  before,
}: {
  ops: readonly PipelineOp[];
  before: Reading | undefined;
}): JSX.Element {
  const boxes = placeBoxes(ops);
  const width = Math.max(...boxes.map(({ x }) => x)) + BOX.width;
  const height = Math.max(...boxes.map(({ y }) => y)) + BOX.height;
  return (
    <div class="scroll">
      <svg
        class="graph"
        width={width + 4}
        height={height + 4}
        viewBox={`-2 -2 ${width + 4} ${height + 4}`}
        role="img"
      >
        <title>Ops of the pipeline</title>
        {listEdges(ops, boxes).map(([from, to]) => (
          <Edge key={`${from.name} ${to.name}`} from={from} to={to} />
        ))}
        {boxes.map(({ op, name, x, y }, i) => (
          <g key={String(i)} transform={`translate(${x} ${y})`} data-op={name}>
            {op === undefined ? <End name={name} /> : <OpBox op={op} before={before} />}
          </g>
        ))}
      </svg>
    </div>
  );
}

function Edge({ from, to }: { from: Box; to: Box }): JSX.Element {
  const start = { x: from.x + BOX.width, y: from.y + BOX.height / 2 };
  const end = { x: to.x, y: to.y + BOX.height / 2 };
  const middle = (start.x + end.x) / 2;
  const path = `M${start.x} ${start.y}C${middle} ${start.y} ${middle} ${end.y} ${end.x} ${end.y}`;
  return <path class="edge" d={path} />;
}

function End({ name }: { name: string }): JSX.Element {
  return (
    <>
      <rect class="end" width={BOX.width} height={36} y={(BOX.height - 36) / 2} rx={18} />
      <text x={BOX.width / 2} y={BOX.height / 2 + 4} text-anchor="middle">
        {name}
      </text>
    </>
  );
}

const NAME_CHARS_MAX = 24;

function OpBox({ op, before }: { op: PipelineOp; before: Reading | undefined }): JSX.Element {
  const { name, running, concurrency, queued } = op;
  const earlier = before?.ops.find((other) => other.name === name);
  const seconds = before === undefined ? 0 : (Date.now() - before.timeMs) / 1_000;
  const requests = op.requests - (earlier?.requests ?? 0);
  const executions = op.executions - (earlier?.executions ?? 0);
  const busyMs = op.busyMs - (earlier?.busyMs ?? 0);
  const isBusy = running >= concurrency && queued > 0;
  const shown = name.length > NAME_CHARS_MAX ? `${name.slice(0, NAME_CHARS_MAX - 1)}…` : name;
  return (
    <>
      <title>{name}</title>
      <rect class={`op${isBusy ? ' full' : ''}`} width={BOX.width} height={BOX.height} rx={8} />
      <text class="name" x={12} y={22}>
        {shown}
      </text>
      <text x={12} y={43}>
        {formatCount(seconds < 1 ? 0 : requests / seconds)} req/s ·{' '}
        {formatMs(executions === 0 ? null : busyMs / executions)}
      </text>
      <text x={12} y={61}>
        {running} of {concurrency} running
      </text>
      <text class={queued > 0 ? 'queued' : ''} x={12} y={79}>
        {formatExact(queued)} queued
      </text>
    </>
  );
}
