/**
 * A thread that answers lookups besides the main one: same port, same table memories, its own
 * connections.
 */

import { parentPort, workerData } from 'node:worker_threads';
import { openProcessAccess } from '../lib/access/process-access.ts';
import { CubeError } from '../lib/core/errors.ts';
import { versionKey } from '../lib/core/names.ts';
import { systemClock } from '../lib/platform/clock.ts';
import { createLogger } from '../lib/platform/logs.ts';
import { MetricsRegistry } from '../lib/platform/metrics.ts';
import { TlsIdentity } from '../lib/rpc/tls-identity.ts';
import { DiskIo } from '../lib/store/disk-io.ts';
import { type AttachedVersion, attachSharedVersion } from '../lib/store/shared-version.ts';
import { DataPort } from './data-port.ts';
import { LoadedVersions } from './loaded-versions.ts';
import { findRouteAccess } from './route-access.ts';
import { addDataPortMetrics, addHttpMetrics } from './server-metrics.ts';
import type {
  HttpResult,
  MessageFromThread,
  MessageToThread,
  ThreadCommand,
  ThreadLookupCount,
  ThreadOptions,
} from './thread-protocol.ts';

const options = workerData as ThreadOptions;
const { thread, shardIndex, shardNum, cubeTable, limits } = options;
const port = parentPort;
if (port === null) throw new Error('serving-worker.ts runs as a worker thread');
const logger = createLogger('cube-server', {
  level: options.logLevel,
  format: options.logFormat,
});
const versions = new LoadedVersions({ shardIndex, shardNum, clock: systemClock });
versions.startFailure = options.startFailure;
const ready = (): boolean => versions.ready && !versions.draining;
const tls = options.tls && new TlsIdentity(options.tls);
const access = openProcessAccess({
  config: options.access,
  processName: 'cube-server',
  findRequirement: findRouteAccess,
  logger,
});
const gate = access.gate.isRestrictive ? access.gate : undefined;
const data = new DataPort({ versions, tls, gate, limits, cubeTable, ready, logger });
const disk = new DiskIo((error) =>
  logger.error({ reason: error.message }, 'damaged block on disk; reads of its rows fail'),
);
const attached = new Map<string, AttachedVersion>();
/** bundle/version → lookups already reported. */
const reportedLookups = new Map<string, number>();
/** Requests forwarded to the main thread. */
const forwardedCalls = new Map<number, (result: HttpResult) => void>();
let lastCall = 0;

function send(message: MessageFromThread): void {
  port?.postMessage(message);
}

async function execute(command: ThreadCommand): Promise<unknown> {
  switch (command.kind) {
    case 'add': {
      const version = attachSharedVersion(command.shared, thread, disk);
      attached.set(versionKey(version), version);
      versions.add(version);
      return undefined;
    }
    case 'activate':
      return versions.activate(command.request);
    case 'remove': {
      const name = versionKey(command.request);
      versions.remove(command.request);
      attached.get(name)?.detach();
      attached.delete(name);
      reportedLookups.delete(name);
      return undefined;
    }
    case 'drain':
      versions.draining = command.draining;
      return undefined;
    case 'listen':
      return data.server.listen(options.host, options.port, true);
    case 'count-lookups':
      return collectLookupCounts();
    case 'metrics':
      return metrics.values();
    case 'stop':
      return data.server.stop();
  }
}

function collectLookupCounts(): ThreadLookupCount[] {
  return versions.all().flatMap(({ resident: { bundle, version }, lookups }) => {
    const name = versionKey({ bundle, version });
    const since = lookups - (reportedLookups.get(name) ?? 0);
    reportedLookups.set(name, lookups);
    return since === 0 ? [] : [{ bundle, version, lookups: since }];
  });
}

/** The main thread answers control, metrics and health requests. */
data.forwardOtherRoutes(async (call) => {
  const id = ++lastCall;
  const result = await new Promise<HttpResult>((resolve) => {
    forwardedCalls.set(id, resolve);
    send({ type: 'call', id, call });
  });
  forwardedCalls.delete(id);
  return result;
});

// Must follow the last route.
const metrics = new MetricsRegistry(false);
addDataPortMetrics(metrics, data, thread);
addHttpMetrics(metrics, [data.http.app]);

port.on('message', async (message: MessageToThread) => {
  const { id } = message;
  if (message.type === 'result') {
    forwardedCalls.get(id)?.(message.result);
    return;
  }
  try {
    send({ type: 'done', id, answer: await execute(message.command) });
  } catch (error) {
    const { code, message: text } = CubeError.from(error);
    send({ type: 'failed', id, code, message: text });
  }
  if (message.command.kind === 'stop') port.close();
});
