/** A pipeline in a file of its own, whose ops run in worker threads as their requests say. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { loadPipelineModule } from '../../../serving/pipeline/module.ts';
import type { OpValues } from '../../../serving/pipeline/op.ts';
import type { PipelineAnswer } from '../../../serving/pipeline/pipeline-answer.ts';
import { PipelineServer } from '../../../serving/pipeline/server.ts';
import type { PipelineSettings } from '../../../serving/pipeline/settings.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';

/** What an op does with a request: `values.does` has the behaviour by the name of the op. */
export type ThreadBehaviour =
  | 'pass'
  | 'wait'
  | 'skip'
  | 'parts'
  | 'product error'
  | 'throw'
  | 'throw foreign'
  | 'fail once'
  | 'hang'
  | 'block'
  | 'exit'
  | 'crash';

/** The class of an op. Op number i adds i + 1, unless it skips `process`. */
const STEP = `
import { CubeError, Op, productError, RequestOp, ResponseOp, skipProcess } from 'hypercube/pipeline';

let inits = 0;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class Step extends Op {
  constructor(number, inputs) {
    super({ name: 'abcd'[number], inputs });
    this.number = number;
    this.failedOnce = new Set();
  }

  initOp() {
    this.inits = ++inits;
    if (process.env.HYPERCUBE_TEST_INIT === 'fail') throw new CubeError('NOT_FOUND', 'no init');
  }

  preprocess(inputs, { dataId }) {
    let x = 0;
    let does = {};
    for (const values of Object.values(inputs)) {
      x += values.x;
      does = values.does;
    }
    this.does = does[this.name];
    const feed = { x, id: dataId, behaviour: does[this.name] ?? 'pass', does };
    if (feed.behaviour === 'product error') return productError(50 + this.number, this.name);
    if (feed.behaviour === 'skip') return skipProcess(feed);
    return feed.behaviour === 'parts' ? [feed, { ...feed, x: 0 }] : feed;
  }

  async process(feeds, { signal, logger }) {
    const [{ behaviour, id }] = feeds;
    if (behaviour === 'wait') await pause(1);
    if (behaviour === 'throw') throw new CubeError('INVALID_ARGUMENT', 'bad');
    if (behaviour === 'throw foreign') throw new RangeError('odd');
    if (behaviour === 'hang') {
      await new Promise((_, reject) => {
        signal.addEventListener('abort', () => {
          logger.warn({ reason: signal.reason.message }, 'aborted');
          reject(signal.reason);
        });
      });
    }
    if (behaviour === 'block') while (true);
    if (behaviour === 'exit') process.exit(3);
    if (behaviour === 'crash') {
      setImmediate(() => { throw new Error('uncaught'); });
      await pause(60_000);
    }
    if (behaviour === 'fail once' && !this.failedOnce.has(id)) {
      this.failedOnce.add(id);
      throw new CubeError('UNAVAILABLE', 'once');
    }
    return feeds.map((feed) => ({ ...feed, x: feed.x + this.number + 1 }));
  }

  postprocess(_inputs, fetched, { concurrencyIndex, logger }) {
    const [{ x, does }] = Array.isArray(fetched) ? fetched : [fetched];
    if (does.log) logger.info({ at: this.name }, 'done');
    return { x, does, slot: concurrencyIndex, inits: this.inits };
  }
}

const a = new Step(0, [new RequestOp()]);
`;

/** a → (b, c) → d. */
const SERVICE = `${STEP}
const b = new Step(1, [a]);
const c = new Step(2, [a]);
const d = new Step(3, [b, c]);
export default new ResponseOp({ inputs: [d] });
`;

/** Op a only, which starts a quarter of the threads. */
export const ONE_OP_SERVICE: string = `${STEP}
export default new ResponseOp({ inputs: [a] });
`;

export function writeService(t: TestContext, text: string = SERVICE): string {
  const file = join(temporaryFolder(t), 'service.mjs');
  writeFileSync(file, text);
  return file;
}

export async function startThreads(
  t: TestContext,
  file: string,
  settings: PipelineSettings = {},
): Promise<PipelineServer> {
  const { ops } = await loadPipelineModule(file);
  const server = new PipelineServer(ops, { ...settings, threadFile: file });
  await server.start();
  t.after(() => server.stop({ drainTimeoutMs: 0 }));
  return server;
}

export function runSteps(
  server: PipelineServer,
  x: number,
  does: Readonly<Record<string, ThreadBehaviour | boolean>> = {},
  signal?: AbortSignal,
): Promise<PipelineAnswer> {
  const values: OpValues = { x, does };
  return server.run({ values, logId: BigInt(x) }, signal === undefined ? {} : { signal });
}
