/**
 * Random graphs with random delays, skips, product errors, thrown errors, retries of ops and of
 * requests, timeouts, deadlines, cancellations, mini-batches, batches, and small channels answer as
 * a recursive evaluator does: each request once, with its own data, with the right code.
 */
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
  type OpResult,
  type OpValues,
  type ProcessContext,
  productError,
  RequestOp,
  ResponseOp,
  skipProcess,
} from '../../../serving/pipeline/op.ts';
import type { PipelineAnswer } from '../../../serving/pipeline/pipeline-answer.ts';
import { PipelineServer } from '../../../serving/pipeline/server.ts';

const REQUESTS = 16;
const OP_TRIES = 2;

/** What a node does with a request, by the number of the request modulo the list. */
type Behaviour =
  | 'pass'
  | 'wait'
  | 'skip'
  | 'parts'
  | 'product error'
  | 'throw'
  | 'throw foreign'
  | 'fail once'
  | 'hang first'
  | 'hang';

const behaviour = fc.oneof(
  { weight: 12, arbitrary: fc.constantFrom<Behaviour>('pass', 'wait', 'skip', 'parts') },
  {
    weight: 1,
    arbitrary: fc.constantFrom<Behaviour>('product error', 'throw', 'throw foreign', 'hang'),
  },
  { weight: 2, arbitrary: fc.constantFrom<Behaviour>('fail once', 'hang first') },
);

interface Node {
  readonly inputs: readonly number[];
  readonly behaviours: readonly Behaviour[];
  readonly concurrency: number;
  readonly batchSize: number;
}

const node = fc.record({
  edges: fc.array(fc.nat(), { minLength: 1, maxLength: 3 }),
  behaviours: fc.array(behaviour, { minLength: 1, maxLength: 6 }),
  concurrency: fc.integer({ min: 1, max: 3 }),
  batchSize: fc.integer({ min: 1, max: 3 }),
});

const graph = fc.array(node, { minLength: 1, maxLength: 6 }).map((drawn): Node[] => {
  // Node i reads earlier nodes (-1: the request); the last reads every node that nobody reads.
  const nodes = drawn.map(({ edges, ...rest }, at) => ({
    ...rest,
    inputs: [...new Set(edges.map((edge) => (edge % (at + 1)) - 1))],
  }));
  const read = new Set(nodes.flatMap(({ inputs }) => inputs));
  const unread = nodes.map((_, at) => at).filter((at) => !read.has(at));
  return [...nodes, { inputs: unread, behaviours: ['pass'], concurrency: 1, batchSize: 1 }];
});

function findBehaviour({ behaviours }: Node, x: number): Behaviour {
  return behaviours[x % behaviours.length] ?? 'pass';
}

/** Such ops have a timeout, and no batches: a batch would time out as a whole. */
function mayHang({ behaviours }: Node): boolean {
  return behaviours.some((each) => each === 'hang' || each === 'hang first');
}

/** The sum of the inputs, plus `at` if process ran. */
class RandomOp extends Op<OpInputs, OpValues, OpValues | OpValues[], OpValues | OpValues[]> {
  readonly #at: number;
  readonly #node: Node;
  readonly #failedOnce = new Set<number>();
  /** Request → executions that have hung. */
  readonly #hung = new Map<number, number>();
  #running = 0;

  constructor(at: number, node: Node, inputs: readonly AnyOp[]) {
    const hangs = mayHang(node);
    const { concurrency, batchSize } = node;
    super({
      name: `op${at}`,
      inputs,
      concurrency,
      retry: OP_TRIES,
      batchSize: hangs ? 1 : batchSize,
      autoBatchingTimeoutMs: 1,
      ...(hangs ? { timeoutMs: 2 } : {}),
    });
    this.#at = at;
    this.#node = node;
  }

  override preprocess(
    inputs: OpInputs,
    { logId }: OpContext,
  ): OpValues | OpValues[] | OpResult<OpValues> {
    const request = Number(logId);
    let x = 0;
    for (const values of Object.values(inputs)) x += values['x'] as number;
    const feed = { x, request };
    switch (findBehaviour(this.#node, request)) {
      case 'product error':
        return productError(50 + this.#at, `${this.name} refuses ${request}`);
      case 'skip':
        return skipProcess(feed);
      case 'parts':
        return [feed, { x: 0, request }];
      default:
        return feed;
    }
  }

  override process(
    feeds: readonly OpValues[],
    context: ProcessContext,
  ): OpValues[] | Promise<OpValues[]> {
    const { requests, concurrencyIndex } = context;
    assert.equal(requests.length, feeds.length);
    assert.ok(feeds.length <= (this.settings.batchSize ?? 1));
    assert.ok(concurrencyIndex < this.#node.concurrency);
    for (const [index, feed] of feeds.entries()) {
      assert.equal(Number(requests[index]?.logId), feed['request']);
    }
    this.#running++;
    assert.ok(this.#running <= this.#node.concurrency, 'more executions than slots');
    const end = (): OpValues[] => {
      this.#running--;
      return feeds.map((feed) => this.#compute(feed));
    };
    const behaviours = feeds.map((feed) => findBehaviour(this.#node, feed['request'] as number));
    if (behaviours.includes('hang')) return this.#hang(context.signal);
    if (behaviours.includes('hang first') && this.#mustHang(Number(context.logId))) {
      return this.#hang(context.signal);
    }
    if (!behaviours.includes('wait') || this.settings.timeoutMs !== undefined) {
      try {
        return end();
      } catch (error) {
        // As an asynchronous failure, which must be the same.
        return Promise.reject(error);
      }
    }
    return new Promise((resolve) => setImmediate(() => setImmediate(resolve))).then(end);
  }

  override postprocess(_inputs: OpInputs, fetched: OpValues | OpValues[]): OpValues {
    const parts = Array.isArray(fetched) ? fetched : [fetched];
    return { x: (parts[0] as OpValues)['x'] };
  }

  #compute({ x, request }: OpValues): OpValues {
    const id = request as number;
    const behaviour = findBehaviour(this.#node, id);
    if (behaviour === 'throw') throw new CubeError('INVALID_ARGUMENT', 'bad');
    if (behaviour === 'throw foreign') throw new RangeError('odd');
    if (behaviour === 'fail once' && !this.#failedOnce.has(id)) {
      this.#failedOnce.add(id);
      throw new CubeError('UNAVAILABLE', 'once');
    }
    return { x: (x as number) + this.#at };
  }

  /** All tries of the op hang, until the whole request is tried again. */
  #mustHang(request: number): boolean {
    const count = this.#hung.get(request) ?? 0;
    this.#hung.set(request, count + 1);
    return count < OP_TRIES;
  }

  #hang(signal: AbortSignal): Promise<OpValues[]> {
    return new Promise((_resolve, reject) => {
      const end = (): void => {
        this.#running--;
        reject(signal.reason);
      };
      if (signal.aborted) end();
      else signal.addEventListener('abort', end, { once: true });
    });
  }
}

/** The value of a request at a node, if no op fails it. */
function evaluate(nodes: readonly Node[], at: number, x: number): number {
  const found = nodes[at];
  if (found === undefined) return x;
  let sum = 0;
  for (const input of found.inputs) sum += evaluate(nodes, input, x);
  return findBehaviour(found, x) === 'skip' ? sum : sum + at;
}

const CODES: Partial<Record<Behaviour, number>> = {
  throw: PIPELINE_ERROR.INPUT_PARAMS_ERROR,
  'throw foreign': PIPELINE_ERROR.UNKNOWN,
  hang: PIPELINE_ERROR.TIMEOUT,
};

/**
 * The codes that a request may end with; empty: it succeeds. A batch fails as a whole, so a request
 * may also get the code of another one that may share its batch.
 */
function findCodes(nodes: readonly Node[], x: number, tries: number): Set<number> {
  const codes = new Set<number>();
  // A try of the request fails in an op at which it does not hang again.
  if (tries <= countFirstHangs(nodes, x)) codes.add(PIPELINE_ERROR.TIMEOUT);
  for (const [at, found] of nodes.entries()) {
    const own = findBehaviour(found, x);
    if (own === 'product error') codes.add(50 + at);
    const code = CODES[own];
    if (code !== undefined) codes.add(code);
  }
  return codes;
}

function countFirstHangs(nodes: readonly Node[], x: number): number {
  return nodes.filter((found) => findBehaviour(found, x) === 'hang first').length;
}

/** Other requests of its batches may fail this one. */
function mayShareFailure(nodes: readonly Node[], x: number): boolean {
  return nodes.some((found) => {
    const isBatched = found.batchSize > 1 && !mayHang(found);
    const own = findBehaviour(found, x);
    if (!isBatched || own === 'skip' || own === 'parts') return false;
    const others = found.behaviours.filter((each) => ['throw', 'throw foreign'].includes(each));
    const once = found.behaviours.filter((each) => each === 'fail once');
    return others.length > 0 || once.length > 0;
  });
}

interface Checked {
  readonly nodes: readonly Node[];
  readonly x: number;
  /** Tries of a whole request. */
  readonly tries: number;
  readonly opCount: number;
}

function check({ nodes, x, tries, opCount }: Checked, answer: PipelineAnswer): void {
  const { errNo, errMsg, values, timings } = answer;
  assert.equal(answer.logId, BigInt(x));
  const codes = findCodes(nodes, x, tries);
  // Several ops may hang in one try, and none of them in the next one.
  const firstHangs = countFirstHangs(nodes, x);
  const isAlwaysLate = firstHangs > 0 && tries === 1;
  const own = nodes.map((found) => findBehaviour(found, x));
  const mustFail = isAlwaysLate || own.some((each) => each in CODES || each === 'product error');
  if (!mustFail && errNo === 0) {
    assert.deepEqual(values, { x: evaluate(nodes, nodes.length - 1, x) });
    assert.equal(timings.length, opCount);
    for (const { readyMs, startMs, processMs, postMs, endMs, outMs } of timings) {
      assert.ok(endMs <= outMs);
      assert.ok(0 <= readyMs && readyMs <= startMs && startMs <= processMs);
      assert.ok(processMs <= postMs && postMs <= endMs);
    }
    return;
  }
  assert.deepEqual(values, {});
  if (mayShareFailure(nodes, x)) assert.notEqual(errNo, 0);
  else assert.ok(codes.has(errNo), `${errNo} (${errMsg}), expected one of ${[...codes]}`);
}

/** When the caller of a request cancels it. */
type Cancellation = 'before' | 'at once' | 'in the next turn' | 'later' | 'never';

interface Caller {
  readonly cancellation: Cancellation;
  readonly timeoutMs: number | undefined;
}

const patient: Caller = { cancellation: 'never', timeoutMs: undefined };
const caller = fc.oneof(
  { weight: 3, arbitrary: fc.constant(patient) },
  {
    weight: 1,
    arbitrary: fc.record({
      cancellation: fc.constantFrom<Cancellation>('before', 'at once', 'in the next turn', 'later'),
      timeoutMs: fc.constant(undefined),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      cancellation: fc.constant<Cancellation>('never'),
      timeoutMs: fc.constantFrom(0, 1, 3, 60_000),
    }),
  },
);

const settings = fc.record({
  channelSize: fc.integer({ min: 1, max: 4 }),
  retry: fc.integer({ min: 1, max: 3 }),
});
const callers = fc.array(caller, { minLength: REQUESTS, maxLength: REQUESTS });

async function cancelLater(abort: AbortController, cancellation: Cancellation): Promise<void> {
  if (cancellation === 'never') return;
  if (cancellation === 'in the next turn') await new Promise((resolve) => setImmediate(resolve));
  if (cancellation === 'later') await new Promise((resolve) => setTimeout(resolve, 2));
  abort.abort();
}

/** @returns whether the caller ended the request */
function isEndedByCaller({ cancellation, timeoutMs }: Caller, answer: PipelineAnswer): boolean {
  const { errNo, errMsg } = answer;
  const isCancelled = errNo === PIPELINE_ERROR.CLOSED;
  const isLate = errNo === PIPELINE_ERROR.TIMEOUT && errMsg.includes('deadline');
  if (cancellation === 'before') assert.ok(isCancelled);
  if (timeoutMs === 0) assert.ok(isLate);
  if (cancellation === 'never') assert.ok(!isCancelled);
  if (timeoutMs === undefined || timeoutMs > 1_000) assert.ok(!isLate);
  return isCancelled || isLate;
}

test('random graphs answer as a recursive evaluator does, whatever other requests do', () =>
  fc.assert(
    fc.asyncProperty(graph, settings, callers, async (nodes, { channelSize, retry }, drawn) => {
      const source = new RequestOp();
      const ops: RandomOp[] = [];
      for (const [at, each] of nodes.entries()) {
        const inputs = each.inputs.map((input) => ops[input] ?? source);
        ops.push(new RandomOp(at, each, inputs));
      }
      const response = new ResponseOp({ inputs: ops.slice(-1) });
      const server = new PipelineServer([...ops.toReversed(), response], { channelSize, retry });
      await server.start();
      const answers = drawn.map(({ cancellation, timeoutMs }, x) => {
        const abort = new AbortController();
        if (cancellation === 'before') abort.abort();
        const options = { signal: abort.signal, ...(timeoutMs !== undefined && { timeoutMs }) };
        const answer = server.run({ logId: BigInt(x), values: { x } }, options);
        void cancelLater(abort, cancellation);
        return answer;
      });
      const stopped = server.stop();
      const dataIds = new Set<number>();
      for (const [x, pending] of answers.entries()) {
        const answer = await pending;
        dataIds.add(answer.dataId);
        if (isEndedByCaller(drawn[x] ?? patient, answer)) continue;
        check({ nodes, x, tries: retry, opCount: ops.length }, answer);
      }
      assert.equal(dataIds.size, REQUESTS);
      await stopped;
      assert.equal(server.stats.requests, REQUESTS);
    }),
    { numRuns: 150 },
  ));
