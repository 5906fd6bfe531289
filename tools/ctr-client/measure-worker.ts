/** Thread of ctr-client that sends its share of the requests of each run. */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import { toLoadSchedule } from './flags.ts';
import { type PreparedRequest, runLoad } from './load/load-run.ts';
import { Session } from './session.ts';
import type { WorkerInput, WorkerReply, WorkerTask } from './worker-threads.ts';

const PROGRESS_MS = 200;
const { flags, rows, recorded, share } = workerData as WorkerInput;
const stop = new AbortController();
const opened = Session.open(flags, {
  rows,
  recorded,
  share,
  signal: stop.signal,
  release: () => undefined,
});
opened.catch(() => undefined);
let requests: readonly PreparedRequest[] = [];
let concurrency = 1;

parentPort?.on('message', (task: WorkerTask) => {
  if (task.kind === 'stop') stop.abort();
  else {
    const work = task.kind === 'prepare' ? prepare(task.batchRows, task.concurrency) : send();
    work.then(reply, (error: unknown) => {
      const { code, message } = CubeError.from(error);
      reply({ kind: 'failed', code, message });
    });
  }
});

function reply(message: WorkerReply): void {
  parentPort?.postMessage(message);
}

async function prepare(batchRows: number, total: number): Promise<WorkerReply> {
  const session = await opened;
  concurrency = Math.floor(total / share.count) + (share.index < total % share.count ? 1 : 0);
  requests = await session.prepareRequests(batchRows, concurrency);
  if (requests.length > 0) return { kind: 'ready' };
  const needed = `--workers ${share.count} needs at least ${share.count} requests`;
  throw new CubeError('INVALID_ARGUMENT', `${needed}; lower --batch or --workers`);
}

async function send(): Promise<WorkerReply> {
  const { rps } = flags;
  let shownMs = 0;
  const { load, recorder } = await runLoad({
    requests,
    rowCount: rows.count,
    schedule: {
      ...toLoadSchedule(flags),
      concurrency,
      ...(rps !== undefined && {
        rps: rps / share.count,
        firstDueMs: (share.index * 1_000) / rps,
      }),
    },
    warmUpMs: flags.warmUp * 1_000,
    stop: stop.signal,
    onRows: (done) => {
      const nowMs = performance.now();
      if (nowMs - shownMs < PROGRESS_MS) return;
      shownMs = nowMs;
      reply({ kind: 'rows', rows: done });
    },
  });
  return {
    kind: 'done',
    load,
    recorded: recorder.export(),
    requests: requests.map(({ start, end: last, key }) => ({ start, end: last, key })),
  };
}
