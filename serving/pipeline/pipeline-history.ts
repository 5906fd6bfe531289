/** The figures of a pipeline and of those that it has replaced, so that counters never decrease. */
import type { PipelineSource } from './pipeline-metrics.ts';
import type { OpStats } from './pipeline-stats.ts';

type Counts = PipelineSource['stats'];

/** What the console shows of a pipeline. */
export type PipelineDescription = ReturnType<PipelineSource['describe']>;

export class PipelineHistory implements PipelineSource {
  /** The current one, and those that still answer requests; the current one is the last. */
  readonly #live: PipelineSource[] = [];
  #ended: Counts = { requests: 0, failures: 0, requestMs: 0, ops: new Map() };

  /** Makes a pipeline the current one. */
  add(source: PipelineSource): void {
    this.#live.push(source);
  }

  /** Keeps the counts of a pipeline that has stopped. */
  end(source: PipelineSource): void {
    const at = this.#live.indexOf(source);
    if (at < 0) return;
    this.#ended = add(this.#ended, source.stats);
    this.#live.splice(at, 1);
  }

  get stats(): Counts {
    return this.#live.reduce((sum, { stats }) => add(sum, stats), this.#ended);
  }

  describe(): PipelineDescription {
    const running = this.#live.reduce((sum, source) => sum + source.describe().running, 0);
    return { running, ops: this.#live.at(-1)?.describe().ops ?? [] };
  }
}

function add(a: Counts, b: Counts): Counts {
  const ops = new Map(a.ops);
  for (const [name, stats] of b.ops) ops.set(name, addOp(ops.get(name), stats));
  return {
    requests: a.requests + b.requests,
    failures: a.failures + b.failures,
    requestMs: a.requestMs + b.requestMs,
    ops,
  };
}

function addOp(a: OpStats | undefined, b: OpStats): OpStats {
  if (a === undefined) return { ...b };
  return {
    count: a.count + b.count,
    inMs: a.inMs + b.inMs,
    prepMs: a.prepMs + b.prepMs,
    midpMs: a.midpMs + b.midpMs,
    postpMs: a.postpMs + b.postpMs,
    outMs: a.outMs + b.outMs,
  };
}
