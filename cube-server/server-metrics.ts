/** What Prometheus sees of a cube-server. Everything is read from plain counters when it is scraped. */
import type { FastifyInstance } from 'fastify';
import { MetricsRegistry } from '../lib/platform/metrics.ts';
import type { OnePortServer } from '../lib/rpc/one-port-server.ts';
import { RpcRoutes as Routes, type RpcRoutes } from '../lib/rpc/rpc-routes.ts';
import type { HeldVersions } from './held-versions.ts';

export interface ServerMetricsOptions {
  readonly held: HeldVersions;
  readonly routes: RpcRoutes;
  readonly app: FastifyInstance;
  readonly server: () => OnePortServer;
  readonly ready: () => boolean;
}

export function createServerMetrics(options: ServerMetricsOptions): MetricsRegistry {
  const metrics = new MetricsRegistry();
  addCallMetrics(metrics, options);
  addTableMetrics(metrics, options.held);
  addVersionMetrics(metrics, options.held, options.ready);
  addConnectionMetrics(metrics, options.server);
  return metrics;
}

function addCallMetrics(metrics: MetricsRegistry, { routes, app }: ServerMetricsOptions): void {
  metrics.collectedCounter({
    name: 'hypercube_requests_total',
    help: 'Calls over baidu_std, by service.',
    labels: ['service', 'method'],
    collect: (set) => {
      for (const { service, method, requests } of routes.routes) set({ service, method }, requests);
    },
  });
  metrics.collectedCounter({
    name: 'hypercube_request_errors_total',
    help: 'Calls over baidu_std that were answered with an error, by code.',
    labels: ['service', 'method', 'code'],
    collect: (set) => {
      for (const { service, method, errors } of routes.routes) {
        for (const [code, count] of errors) set({ service, method, code }, count);
      }
    },
  });
  const durations = metrics.histogram({
    name: 'hypercube_request_duration_seconds',
    help: `Time to answer a call over baidu_std; one call in ${Routes.sampleEvery} is measured.`,
    labels: ['service', 'method'],
  });
  for (const route of routes.routes) {
    const labels = { service: route.service, method: route.method };
    route.onSample = (seconds) => durations.observe(labels, seconds);
  }
  const httpDurations = metrics.histogram({
    name: 'hypercube_http_request_duration_seconds',
    help: 'Time to answer a request over HTTP, by route and status.',
    labels: ['route', 'status'],
  });
  app.addHook('onResponse', async (request, reply) => {
    const route = request.routeOptions.url ?? 'unknown';
    const status = String(reply.statusCode);
    httpDurations.observe({ route, status }, reply.elapsedTime / 1000);
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

function addVersionMetrics(
  metrics: MetricsRegistry,
  held: HeldVersions,
  ready: () => boolean,
): void {
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
      const { budgetBytes, usedBytes, pooledBytes } = held.memory;
      set({ kind: 'budget' }, budgetBytes);
      set({ kind: 'used' }, usedBytes);
      set({ kind: 'pooled' }, pooledBytes);
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_ready',
    help: '1 when this replica answers unpinned calls.',
    collect: (set) => set({}, ready() ? 1 : 0),
  });
}

function addConnectionMetrics(metrics: MetricsRegistry, server: () => OnePortServer): void {
  metrics.collectedGauge({
    name: 'hypercube_connections',
    help: 'Open connections, of any protocol.',
    collect: (set) => set({}, server().connections),
  });
  metrics.collectedGauge({
    name: 'hypercube_unsent_bytes',
    help: 'Answers that their callers have not read yet.',
    collect: (set) => set({}, server().host.unsentBytes),
  });
  metrics.collectedCounter({
    name: 'hypercube_connections_refused_total',
    help: 'Connections that were closed, by reason.',
    labels: ['reason'],
    collect: (set) => {
      const { connectionsRefused, http2Refused, host } = server();
      set({ reason: 'limit' }, connectionsRefused);
      set({ reason: 'http2' }, http2Refused);
      set({ reason: 'malformed' }, host.brokenConnections);
      set({ reason: 'slow_reader' }, host.slowReaders);
    },
  });
  metrics.collectedCounter({
    name: 'hypercube_unknown_calls_total',
    help: 'Calls over baidu_std to methods that are not served.',
    collect: (set) => set({}, server().host.unknownCalls),
  });
}
