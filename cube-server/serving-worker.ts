/** A thread that answers lookups beside the main one: same port, same table memories, its own connections. */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError } from '../lib/core/errors.ts';
import { systemClock } from '../lib/platform/clock.ts';
import { createLogger, type LOG_LEVELS } from '../lib/platform/logs.ts';
import { MetricsRegistry } from '../lib/platform/metrics.ts';
import { TlsIdentity } from '../lib/rpc/tls-identity.ts';
import { DiskIo } from '../lib/store/disk-io.ts';
import { type AttachedVersion, attachShared } from '../lib/store/shared-version.ts';
import { DataPort } from './data-port.ts';
import { HeldVersions } from './held-versions.ts';
import { addDataPortMetrics, addHttpMetrics } from './server-metrics.ts';
import type {
  FromThread,
  HttpResult,
  ThreadOptions,
  ThreadOrder,
  ThreadUse,
  ToThread,
} from './thread-protocol.ts';

const options = workerData as ThreadOptions;
const { thread, shardIndex, shardNum, cubeTable, limits, logLevel } = options;
const port = parentPort;
if (port === null) throw new Error('serving-worker.ts runs as a worker thread');
const logger = createLogger('cube-server', logLevel as (typeof LOG_LEVELS)[number]);
const held = new HeldVersions({ shardIndex, shardNum, clock: systemClock });
const ready = (): boolean => held.ready && !held.draining;
const tls = options.tls && new TlsIdentity(options.tls);
const data = new DataPort({ held, tls, limits, cubeTable, ready, logger });
const disk = new DiskIo((error) => logger.error({ reason: error.message }, 'damaged rows on disk'));
const attached = new Map<string, AttachedVersion>();
/** bundle/version → lookups already told. */
const told = new Map<string, number>();
/** Requests handed to the main thread. */
const handed = new Map<number, (result: HttpResult) => void>();
let lastCall = 0;

function send(message: FromThread): void {
  port?.postMessage(message);
}

async function obey(order: ThreadOrder): Promise<unknown> {
  switch (order.kind) {
    case 'hold': {
      const version = attachShared(order.shared, thread, disk);
      attached.set(`${version.bundle}/${version.version}`, version);
      held.hold(version);
      return undefined;
    }
    case 'activate':
      return held.activate(order.request);
    case 'drop': {
      const name = `${order.request.bundle}/${order.request.version}`;
      held.drop(order.request);
      attached.get(name)?.detach();
      attached.delete(name);
      told.delete(name);
      return undefined;
    }
    case 'drain':
      held.draining = order.draining;
      return undefined;
    case 'listen':
      return data.server.listen(options.host, options.port, true);
    case 'observe':
      return uses();
    case 'metrics':
      return metrics.values();
    case 'stop':
      return data.server.stop();
  }
}

function uses(): ThreadUse[] {
  return held.all().flatMap(({ resident: { bundle, version }, lookups }) => {
    const name = `${bundle}/${version}`;
    const since = lookups - (told.get(name) ?? 0);
    told.set(name, lookups);
    return since === 0 ? [] : [{ bundle, version, lookups: since }];
  });
}

/** Control, metrics and health are the main thread's. */
data.handOn(async (call) => {
  const id = ++lastCall;
  const result = await new Promise<HttpResult>((resolve) => {
    handed.set(id, resolve);
    send({ type: 'call', id, call });
  });
  handed.delete(id);
  return result;
});

// After the last route.
const metrics = new MetricsRegistry(false);
addDataPortMetrics(metrics, data, thread);
addHttpMetrics(metrics, [data.http.app]);

port.on('message', async (message: ToThread) => {
  const { id } = message;
  if (message.type === 'result') {
    handed.get(id)?.(message.result);
    return;
  }
  try {
    send({ type: 'done', id, answer: await obey(message.order) });
  } catch (error) {
    const { code, message: text } = CubeError.from(error);
    send({ type: 'failed', id, code, message: text });
  }
  if (message.order.kind === 'stop') port.close();
});
