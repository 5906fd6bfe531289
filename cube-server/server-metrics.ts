/** Prometheus metrics of a cube-server, read from plain counters at each scrape. */
import type { FastifyInstance } from 'fastify';
import type { MetricsRegistry } from '../lib/platform/metrics.ts';
import type { OnePortServer } from '../lib/rpc/one-port-server.ts';
import { type MethodStats, RpcRoutes } from '../lib/rpc/rpc-routes.ts';
import { type DataPort, FORWARDED_ROUTE } from './data-port.ts';
import type { LoadedVersions } from './loaded-versions.ts';
import type { VersionControl } from './version-control.ts';

/** Metrics of one lookup thread; values of all threads are added up. */
export function addDataPortMetrics(metrics: MetricsRegistry, data: DataPort, thread: number): void {
  addCallMetrics(metrics, data);
  addThreadMetrics(metrics, data, thread);
  addTableMetrics(metrics, data.versions);
  addConnectionMetrics(metrics, data.server);
}

/** Metrics of the process: loaded versions, loads, memory. */
export function addVersionMetrics(
  metrics: MetricsRegistry,
  versions: VersionControl,
  ready: () => boolean,
): void {
  addLoadedVersionMetrics(metrics, versions, ready);
  addLoadMetrics(metrics, versions);
}

const CALL_LABELS = ['protocol', 'service', 'method'] as const;

function addCallMetrics(metrics: MetricsRegistry, data: DataPort): void {
  const calls = (): [Record<'protocol' | 'service' | 'method', string>, MethodStats][] =>
    [
      ...data.routes.routes.map((counts) => ['baidu_std', counts] as const),
      ...data.grpc.routes.map((counts) => ['grpc', counts] as const),
    ].map(([protocol, counts]) => {
      const { service, method } = counts;
      return [{ protocol, service, method }, counts];
    });
  metrics.collectedCounter({
    name: 'hypercube_requests_total',
    help: 'Calls over baidu_std and gRPC, by service.',
    labels: CALL_LABELS,
    collect: (set) => {
      for (const [labels, { requests }] of calls()) set(labels, requests);
    },
  });
  metrics.collectedCounter({
    name: 'hypercube_request_errors_total',
    help: 'Calls over baidu_std and gRPC that failed, by code.',
    labels: [...CALL_LABELS, 'code'],
    collect: (set) => {
      for (const [labels, { errors }] of calls()) {
        for (const [code, count] of errors) set({ ...labels, code }, count);
      }
    },
  });
  const durations = metrics.histogram({
    name: 'hypercube_request_duration_seconds',
    help:
      'Time to answer a call, in seconds; ' +
      `over baidu_std one call in ${RpcRoutes.sampleInterval} is measured.`,
    labels: CALL_LABELS,
  });
  for (const [labels, counts] of calls()) {
    counts.onSample = (seconds) => durations.observe(labels, seconds);
  }
}

/** @param apps whose requests are counted */
export function addHttpMetrics(metrics: MetricsRegistry, apps: Iterable<FastifyInstance>): void {
  const durations = metrics.histogram({
    name: 'hypercube_http_request_duration_seconds',
    help: 'Time to answer an HTTP request, in seconds, by route and status.',
    labels: ['route', 'status'],
  });
  for (const app of apps) {
    app.addHook('onResponse', async (request, reply) => {
      const route = request.routeOptions.url ?? 'unknown';
      // Counted by the thread that answers it.
      if (route === FORWARDED_ROUTE) return;
      const status = String(reply.statusCode);
      durations.observe({ route, status }, reply.elapsedTime / 1000);
    });
  }
}

/** Shows whether the system spreads connections evenly, and whether a thread is idle. */
function addThreadMetrics(metrics: MetricsRegistry, data: DataPort, thread: number): void {
  const own = { thread: String(thread) };
  metrics.collectedCounter({
    name: 'hypercube_thread_requests_total',
    help: 'Calls over baidu_std and gRPC, by thread; ' + 'restarts at 0 when a thread is replaced.',
    labels: ['thread'],
    collect: (set) => {
      const routes = [...data.routes.routes, ...data.grpc.routes];
      set(
        own,
        routes.reduce((sum, { requests }) => sum + requests, 0),
      );
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_thread_connections',
    help: 'Open connections, by thread.',
    labels: ['thread'],
    collect: (set) => set(own, data.server.connections),
  });
}

function addTableMetrics(metrics: MetricsRegistry, loaded: LoadedVersions): void {
  const labels = ['bundle', 'table'] as const;
  const counters = [
    ['hypercube_keys_total', 'Keys looked up.', 'keys'],
    ['hypercube_hits_total', 'Keys found.', 'hits'],
    ['hypercube_row_bytes_total', 'Bytes of rows returned.', 'bytes'],
  ] as const;
  for (const [name, help, field] of counters) {
    metrics.collectedCounter({
      name,
      help,
      labels,
      collect: (set) => {
        for (const counters of loaded.tableCounters) {
          set({ bundle: counters.bundle, table: counters.table }, counters[field]);
        }
      },
    });
  }
  metrics.collectedCounter({
    name: 'hypercube_misses_total',
    help: 'Keys not found in the table.',
    labels,
    collect: (set) => {
      for (const { bundle, table, keys, hits } of loaded.tableCounters)
        set({ bundle, table }, keys - hits);
    },
  });
}

function addLoadedVersionMetrics(
  metrics: MetricsRegistry,
  versions: VersionControl,
  ready: () => boolean,
): void {
  const { loaded } = versions;
  const labels = ['bundle', 'version'] as const;
  for (const [name, help, field] of [
    ['hypercube_resident_bytes', 'Memory of a loaded version, including shared layers.', 'bytes'],
    ['hypercube_resident_rows', 'Rows of a loaded version.', 'rows'],
  ] as const) {
    metrics.collectedGauge({
      name,
      help,
      labels,
      collect: (set) => {
        for (const { bundle, versions } of loaded.getBundleStatus()) {
          for (const status of versions) set({ bundle, version: status.version }, status[field]);
        }
      },
    });
  }
  metrics.collectedGauge({
    name: 'hypercube_version_active',
    help: '1 for the active version of a bundle, 0 for other loaded versions.',
    labels,
    collect: (set) => {
      for (const { bundle, active, versions } of loaded.getBundleStatus()) {
        for (const { version } of versions) set({ bundle, version }, version === active ? 1 : 0);
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_memory_bytes',
    help: 'Memory for tables: budget, used by versions, and pooled for the next load.',
    labels: ['kind'],
    collect: (set) => {
      const { budgetBytes, usedBytes, pooledBytes } = versions.memory;
      set({ kind: 'budget' }, budgetBytes);
      set({ kind: 'used' }, usedBytes);
      set({ kind: 'pooled' }, pooledBytes);
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_draining',
    help: '1 while the server is draining and refuses every lookup.',
    collect: (set) => set({}, loaded.draining ? 1 : 0),
  });
  metrics.collectedGauge({
    name: 'hypercube_ready',
    help: '1 when this replica is ready: some version is active.',
    collect: (set) => set({}, ready() ? 1 : 0),
  });
}

function addLoadMetrics(metrics: MetricsRegistry, versions: VersionControl): void {
  const durations = metrics.histogram({
    name: 'hypercube_load_duration_seconds',
    help: 'Duration of successful loads, in seconds.',
  });
  const bytes = metrics.counter({
    name: 'hypercube_load_bytes_total',
    help: 'Bytes of layer files read by loads.',
  });
  versions.onLoaded = (answer) => {
    durations.observe(answer.durationMs / 1000);
    bytes.inc(answer.bytes);
  };
  metrics.collectedCounter({
    name: 'hypercube_load_failures_total',
    help: 'Loads that failed, by code.',
    labels: ['code'],
    collect: (set) => {
      for (const [code, count] of versions.failures) set({ code }, count);
    },
  });
  metrics.collectedCounter({
    name: 'hypercube_unloads_total',
    help: 'Versions unloaded, by reason: asked (on request) or room (to make room for a load).',
    labels: ['reason'],
    collect: (set) => {
      for (const [reason, count] of Object.entries(versions.unloads)) set({ reason }, count);
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_loads_waiting',
    help: 'Loads in progress or waiting.',
    collect: (set) => set({}, versions.getLoadingVersions().length),
  });
}

function addConnectionMetrics(metrics: MetricsRegistry, server: OnePortServer): void {
  metrics.collectedGauge({
    name: 'hypercube_connections',
    help: 'Open connections, of any protocol.',
    collect: (set) => set({}, server.connections),
  });
  metrics.collectedGauge({
    name: 'hypercube_unsent_bytes',
    help: 'Bytes of responses that clients have not read yet.',
    collect: (set) => set({}, server.unsentBytes),
  });
  metrics.collectedCounter({
    name: 'hypercube_connections_refused_total',
    help: 'Connections refused or closed by the server, by reason.',
    labels: ['reason'],
    collect: (set) => {
      const { connectionsRefused, http2Refused, tlsRefused, slowReaders, baidu } = server;
      set({ reason: 'limit' }, connectionsRefused);
      set({ reason: 'evicted' }, server.connectionsEvicted);
      set({ reason: 'http2' }, http2Refused);
      set({ reason: 'tls' }, tlsRefused);
      set({ reason: 'malformed' }, baidu.brokenConnections);
      set({ reason: 'slow_reader' }, slowReaders);
    },
  });
  metrics.collectedCounter({
    name: 'hypercube_unknown_calls_total',
    help: 'Calls over baidu_std to unknown methods.',
    collect: (set) => set({}, server.baidu.unknownMethodCalls),
  });
}
