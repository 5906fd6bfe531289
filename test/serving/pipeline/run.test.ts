/** Pipelines answer each request once, with its own data and the right code. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../../lib/core/errors.ts';
import { PIPELINE_ERROR } from '../../../proto/pipeline.ts';
import {
  type AnyOp,
  Op,
  type OpContext,
  type OpInputs,
  type OpValues,
  type PipelineRequest,
  productError,
  RequestOp,
  ResponseOp,
  skipProcess,
} from '../../../serving/pipeline/op.ts';
import { planPipeline } from '../../../serving/pipeline/plan.ts';
import { PipelineServer } from '../../../serving/pipeline/server.ts';

function makeRequest(x: number): PipelineRequest {
  return { logId: BigInt(x), values: { x } };
}

/** Adds its number to the sum of its inputs; requests whose x it is told to fail get a code. */
class SumOp extends Op {
  readonly #add: number;
  readonly #failing: ReadonlySet<number>;

  constructor(name: string, inputs: AnyOp[], add = 1, failing: number[] = []) {
    super({ name, inputs, concurrency: 2, retry: 2 });
    this.#add = add;
    this.#failing = new Set(failing);
  }

  override preprocess(inputs: OpInputs, { logId }: OpContext) {
    if (this.#failing.has(Number(logId))) return productError(50 + this.#add, this.name);
    let x = 0;
    for (const values of Object.values(inputs)) x += values['x'] as number;
    return Number(logId) % 3 === 0 ? skipProcess({ x }) : { x };
  }

  override async process(feeds: readonly OpValues[], { dataId }: OpContext) {
    if (dataId % 2 === 0) await new Promise((resolve) => setImmediate(resolve));
    return feeds.map((feed) => ({ x: (feed['x'] as number) + this.#add }));
  }
}

const graphs = fc.array(
  fc.record({ edges: fc.array(fc.nat(), { minLength: 1, maxLength: 3 }), failing: fc.nat(40) }),
  { minLength: 1, maxLength: 7 },
);

type Nodes = { inputs: number[]; failing: number }[];

/** Node i reads earlier nodes (-1: the request); the last reads every node that nobody reads. */
function toNodes(drawn: readonly { edges: number[]; failing: number }[]): Nodes {
  const nodes = drawn.map(({ edges, failing }, at) => ({
    inputs: [...new Set(edges.map((edge) => (edge % (at + 1)) - 1))],
    failing,
  }));
  const read = new Set(nodes.flatMap(({ inputs }) => inputs));
  const unread = nodes.map((_, at) => at).filter((at) => !read.has(at));
  return [...nodes, { inputs: unread, failing: 41 }];
}

function buildOps(nodes: Nodes, source: RequestOp): SumOp[] {
  const ops: SumOp[] = [];
  for (const [at, { inputs, failing }] of nodes.entries()) {
    const from = inputs.map((input) => ops[input] ?? source);
    ops.push(new SumOp(`op${at}`, from, at, [failing]));
  }
  return ops;
}

test('plans order every edge and number stages by the longest path', () => {
  fc.assert(
    fc.property(graphs, (drawn) => {
      const ops = buildOps(toNodes(drawn), new RequestOp());
      const plan = planPipeline(ops.toReversed(), new ResponseOp({ inputs: ops.slice(-1) }));
      for (const [at, { predecessors, stage }] of plan.steps.entries()) {
        const before = predecessors.map((from) => plan.steps[from]?.stage ?? 0);
        assert.ok(predecessors.every((from) => from < at));
        assert.equal(stage, Math.max(...before) + 1);
      }
    }),
  );
});

test('invalid graphs are refused by the name of the op', () => {
  const request = new RequestOp();
  const a = new SumOp('a', [request]);
  const refuse = (ops: Op[], last: AnyOp[], message: RegExp): void => {
    const plan = (): unknown => planPipeline(ops, new ResponseOp({ inputs: last }));
    assert.throws(plan, (error) => error instanceof CubeError && message.test(error.message));
  };
  refuse([a, new SumOp('a', [a])], [a], /named a/);
  refuse([a, new SumOp('b', [a])], [a], /predecessor|reach/);
  refuse([new SumOp('b', [a])], [a], /reads a, which is not in/);
  refuse([a, new SumOp('b', [new RequestOp(), a])], [a], /2 request ops/);
  refuse([a], [request], /exactly one predecessor/);
  const loop: AnyOp[] = [a];
  const c = new SumOp('c', loop);
  const d = new SumOp('d', [c]);
  loop.push(d);
  refuse([a, c, d], [d], /cycle: c, d/);
});

/** Its process ends only with its signal. */
class HangingOp extends Op {
  tries = 0;

  override process(_feeds: readonly OpValues[], { signal }: OpContext): Promise<OpValues[]> {
    this.tries++;
    return new Promise((_resolve, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason));
    });
  }
}

test('an op timeout is retried, then answers TIMEOUT; the next request is served', async () => {
  const op = new HangingOp({ name: 'slow', inputs: [new RequestOp()], timeoutMs: 1, retry: 3 });
  const server = new PipelineServer(new ResponseOp({ inputs: [op] }));
  await server.start();
  for (const tries of [3, 6]) {
    const answer = await server.run(makeRequest(1));
    assert.equal(answer.errNo, PIPELINE_ERROR.TIMEOUT);
    assert.match(answer.errMsg, /slow/);
    assert.equal(op.tries, tries);
  }
});

test('a deadline, a cancellation and overload end only their request', async () => {
  const op = new HangingOp({ name: 'slow', inputs: [new RequestOp()] });
  const server = new PipelineServer(new ResponseOp({ inputs: [op] }), { maxRequests: 2 });
  await server.start();
  const caller = new AbortController();
  const cancelled = server.run(makeRequest(1), { signal: caller.signal });
  const late = server.run(makeRequest(2), { timeoutMs: 1 });
  const refused = await server.run(makeRequest(3));
  assert.equal(refused.errNo, PIPELINE_ERROR.CLIENT_ERROR);
  assert.match(refused.errMsg, /overloaded/);
  caller.abort();
  assert.equal((await cancelled).errNo, PIPELINE_ERROR.CLOSED);
  assert.equal((await late).errNo, PIPELINE_ERROR.TIMEOUT);
});

test('a request that is cancelled or late at its start runs no op', async () => {
  let runs = 0;
  class CountOp extends Op {
    override preprocess(): OpValues {
      runs++;
      return {};
    }
  }
  const op = new CountOp({ name: 'count', inputs: [new RequestOp()] });
  const server = new PipelineServer(new ResponseOp({ inputs: [op] }));
  await server.start();
  const cancelled = await server.run(makeRequest(1), { signal: AbortSignal.abort() });
  assert.equal(cancelled.errNo, PIPELINE_ERROR.CLOSED);
  const late = await server.run(makeRequest(2), { timeoutMs: 0 });
  assert.equal(late.errNo, PIPELINE_ERROR.TIMEOUT);
  assert.equal(runs, 0);
  assert.equal(server.stats.failures, 2);
  await server.stop();
});
