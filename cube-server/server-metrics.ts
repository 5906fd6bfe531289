/** What Prometheus sees of a cube-server. Everything is read from plain counters when it is scraped. */
import type { FastifyInstance } from 'fastify';
import type { MetricsRegistry } from '../lib/platform/metrics.ts';
import type { OnePortServer } from '../lib/rpc/one-port-server.ts';
import { type CallCounts, RpcRoutes } from '../lib/rpc/rpc-routes.ts';
import { type DataPort, HANDED_ON } from './data-port.ts';
import type { HeldVersions } from './held-versions.ts';
import type { VersionControl } from './version-control.ts';

/** Those of one thread that answers lookups; the threads' values are added up. */
export function addDataPortMetrics(metrics: MetricsRegistry, data: DataPort, thread: number): void {
  addCallMetrics(metrics, data);
  addThreadMetrics(metrics, data, thread);
  addTableMetrics(metrics, data.held);
  addConnectionMetrics(metrics, data.server);
}

/** Those of the process: what is resident, loads, memory. */
export function addVersionMetrics(
  metrics: MetricsRegistry,
  versions: VersionControl,
  ready: () => boolean,
): void {
  addResidentMetrics(metrics, versions, ready);
  addLoadMetrics(metrics, versions);
}

const CALL_LABELS = ['protocol', 'service', 'method'] as const;

function addCallMetrics(metrics: MetricsRegistry, data: DataPort): void {
  const calls = (): [Record<'protocol' | 'service' | 'method', string>, CallCounts][] =>
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
    help: 'Calls over baidu_std and gRPC that were answered with an error, by code.',
    labels: [...CALL_LABELS, 'code'],
    collect: (set) => {
      for (const [labels, { errors }] of calls()) {
        for (const [code, count] of errors) set({ ...labels, code }, count);
      }
    },
  });
  const durations = metrics.histogram({
    name: 'hypercube_request_duration_seconds',
    help: `Time to answer a call; over baidu_std one call in ${RpcRoutes.sampleEvery} is measured.`,
    labels: CALL_LABELS,
  });
  for (const [labels, counts] of calls()) {
    counts.onSample = (seconds) => durations.observe(labels, seconds);
  }
}

/** @param apps those whose requests count */
export function addHttpMetrics(metrics: MetricsRegistry, apps: Iterable<FastifyInstance>): void {
  const durations = metrics.histogram({
    name: 'hypercube_http_request_duration_seconds',
    help: 'Time to answer a request over HTTP, by route and status.',
    labels: ['route', 'status'],
  });
  for (const app of apps) {
    app.addHook('onResponse', async (request, reply) => {
      const route = request.routeOptions.url ?? 'unknown';
      // Counted where it is answered.
      if (route === HANDED_ON) return;
      const status = String(reply.statusCode);
      durations.observe({ route, status }, reply.elapsedTime / 1000);
    });
  }
}

/** Whether the system spreads connections well, and whether some thread has no work. */
function addThreadMetrics(metrics: MetricsRegistry, data: DataPort, thread: number): void {
  const own = { thread: String(thread) };
  metrics.collectedCounter({
    name: 'hypercube_thread_requests_total',
    help: 'Calls over baidu_std and gRPC, by the thread that answered; from 0 again when a thread is replaced.',
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

function addTableMetrics(metrics: MetricsRegistry, held: HeldVersions): void {
  const labels = ['bundle', 'table'] as const;
  const counters = [
    ['hypercube_keys_total', 'Keys looked up.', 'keys'],
    ['hypercube_hits_total', 'Keys that were found.', 'hits'],
    ['hypercube_row_bytes_total', 'Bytes of rows answered.', 'bytes'],
  ] as const;
  for (const [name, help, field] of counters) {
    metrics.collectedCounter({
      name,
      help,
      labels,
      collect: (set) => {
        for (const traffic of held.traffic) {
          set({ bundle: traffic.bundle, table: traffic.table }, traffic[field]);
        }
      },
    });
  }
  metrics.collectedCounter({
    name: 'hypercube_misses_total',
    help: 'Keys that are not in the table.',
    labels,
    collect: (set) => {
      for (const { bundle, table, keys, hits } of held.traffic) set({ bundle, table }, keys - hits);
    },
  });
}

function addResidentMetrics(
  metrics: MetricsRegistry,
  versions: VersionControl,
  ready: () => boolean,
): void {
  const { held } = versions;
  const labels = ['bundle', 'version'] as const;
  for (const [name, help, field] of [
    ['hypercube_resident_bytes', 'Memory of a resident version, shared layers included.', 'bytes'],
    ['hypercube_resident_rows', 'Rows of a resident version.', 'rows'],
  ] as const) {
    metrics.collectedGauge({
      name,
      help,
      labels,
      collect: (set) => {
        for (const { bundle, versions } of held.bundleStatus()) {
          for (const status of versions) set({ bundle, version: status.version }, status[field]);
        }
      },
    });
  }
  metrics.collectedGauge({
    name: 'hypercube_version_active',
    help: '1 for the version that unpinned calls get, 0 for the other resident ones.',
    labels,
    collect: (set) => {
      for (const { bundle, active, versions } of held.bundleStatus()) {
        for (const { version } of versions) set({ bundle, version }, version === active ? 1 : 0);
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_memory_bytes',
    help: 'Memory for tables: the budget, what versions use, and what is kept for the next load.',
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
    help: '1 when every lookup is refused until control says otherwise.',
    collect: (set) => set({}, held.draining ? 1 : 0),
  });
  metrics.collectedGauge({
    name: 'hypercube_ready',
    help: '1 when this replica answers unpinned calls.',
    collect: (set) => set({}, ready() ? 1 : 0),
  });
}

function addLoadMetrics(metrics: MetricsRegistry, versions: VersionControl): void {
  const durations = metrics.histogram({
    name: 'hypercube_load_duration_seconds',
    help: 'Time that loads of versions took, those that failed not counted.',
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
    help: 'Versions unloaded: asked for, or given up so that another had room.',
    labels: ['reason'],
    collect: (set) => {
      for (const [reason, count] of Object.entries(versions.unloads)) set({ reason }, count);
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_loads_waiting',
    help: 'Loads under way or waiting for their turn.',
    collect: (set) => set({}, versions.loadingStatus().length),
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
    help: 'Answers that their callers have not read yet.',
    collect: (set) => set({}, server.unsentBytes),
  });
  metrics.collectedCounter({
    name: 'hypercube_connections_refused_total',
    help: 'Connections that were closed, by reason.',
    labels: ['reason'],
    collect: (set) => {
      const { connectionsRefused, http2Refused, tlsRefused, slowReaders, host } = server;
      set({ reason: 'limit' }, connectionsRefused);
      set({ reason: 'http2' }, http2Refused);
      set({ reason: 'tls' }, tlsRefused);
      set({ reason: 'malformed' }, host.brokenConnections);
      set({ reason: 'slow_reader' }, slowReaders);
    },
  });
  metrics.collectedCounter({
    name: 'hypercube_unknown_calls_total',
    help: 'Calls over baidu_std to methods that are not served.',
    collect: (set) => set({}, server.host.unknownCalls),
  });
}
