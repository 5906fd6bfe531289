/** A pipeline under requests that succeed, fail, skip, time out and are cancelled; its memory. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import {
  Op,
  type OpContext,
  type OpInputs,
  type OpResult,
  type OpValues,
  productError,
  RequestOp,
  ResponseOp,
  skipProcess,
} from '../../../serving/pipeline/op.ts';
import { PipelineServer } from '../../../serving/pipeline/server.ts';

const CALLERS = 64;

/** By the request's number: most pass, others skip, fail, throw, wait, or wait for their signal. */
class MixedOp extends Op {
  override preprocess(inputs: OpInputs): OpValues | OpResult<OpValues> {
    const values = Object.values(inputs)[0] ?? {};
    const number = values['number'] as number;
    if (number % 11 === 0) return skipProcess(values);
    return number % 13 === 0 ? productError(60, 'refused') : values;
  }

  override process(feeds: readonly OpValues[], { signal }: OpContext) {
    const number = feeds[0]?.['number'] as number;
    if (number % 17 === 0) throw new RangeError('odd');
    if (number % 101 === 0) {
      return new Promise<readonly OpValues[]>((_resolve, reject) => {
        signal.addEventListener('abort', () => reject(signal.reason), { once: true });
      });
    }
    if (number % 3 > 0) return feeds;
    return new Promise<readonly OpValues[]>((resolve) => setImmediate(() => resolve(feeds)));
  }
}

export class PipelineMemory {
  /** Answers by their code. */
  readonly codes: Map<number, number> = new Map();
  readonly #server: PipelineServer;
  readonly #collectGarbage: () => void;
  #number = 0;

  constructor() {
    const request = new RequestOp();
    const options = { concurrency: 8, timeoutMs: 2, retry: 2 };
    const left = new MixedOp({ name: 'left', inputs: [request], ...options });
    const right = new MixedOp({ name: 'right', inputs: [request], ...options, batchSize: 4 });
    const join = new MixedOp({ name: 'join', inputs: [left, right], concurrency: 8 });
    this.#server = new PipelineServer(new ResponseOp({ inputs: [join] }), { channelSize: 16 });
    setFlagsFromString('--expose-gc');
    this.#collectGarbage = runInNewContext('gc') as () => void;
  }

  async start(): Promise<void> {
    await this.#server.start();
  }

  /** Runs requests and returns the bytes of the heap afterwards. */
  async run(count: number): Promise<number> {
    const end = this.#number + count;
    const call = async (): Promise<void> => {
      while (this.#number < end) {
        const number = this.#number++;
        const caller = new AbortController();
        const timeoutMs = number % 29 === 0 ? 1 : 10_000;
        const answer = this.#server.run(
          { values: { number, text: 'x'.repeat(100) }, logId: BigInt(number) },
          { signal: caller.signal, timeoutMs },
        );
        if (number % 31 === 0) caller.abort();
        const { errNo } = await answer;
        this.codes.set(errNo, (this.codes.get(errNo) ?? 0) + 1);
      }
    };
    await Promise.all(Array.from({ length: CALLERS }, call));
    this.#collectGarbage();
    return process.memoryUsage().heapUsed;
  }

  async stop(): Promise<void> {
    await this.#server.stop();
  }
}
