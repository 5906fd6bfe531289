/**
 * The gateway examples of deploy/gateway: references resolve, every route leads to a path that
 * serving has, and none to control, metrics or the console.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { parse } from 'yaml';
import { findRouteAccess } from '../../serving/protocols/route-access.ts';

const FOLDER = join(import.meta.dirname, '..', '..', '..', 'deploy', 'gateway');
const PREDICTIONS = [
  '/v1/ctr:predict',
  '/v2/models/ctr-dnn/infer',
  '/v2/models/image-classifier/versions/3/infer',
  '/hypercube.CtrService/Predict',
  '/inference.GRPCInferenceService/ModelInfer',
];
const INTERNAL = [
  '/metrics',
  '/v1/status',
  '/console',
  '/v1/console/snapshot',
  '/v2/repository/models/:model/load',
];

// biome-ignore lint/suspicious/noExplicitAny: fields of examples
type Fields = any;

const readYaml = (name: string) => parse(readFileSync(join(FOLDER, name), 'utf8'));

function checkPaths(matches: (path: string) => boolean): void {
  for (const path of PREDICTIONS) assert.ok(matches(path), `${path} is routed`);
  for (const path of INTERNAL) {
    assert.ok(!matches(path), `${path} is not routed`);
    const method = { protocol: 'http', verb: 'GET', path } as const;
    assert.notEqual(findRouteAccess(method), 'predict', path);
  }
}

test('Kong routes predictions over TLS, with keys and rate limits', () => {
  const { services, plugins, consumers } = readYaml('kong.yml');
  const routes = services.flatMap(({ routes: own = [] }: Fields) => own);
  const names = [...services, ...routes].map(({ name }: Fields) => name);
  assert.equal(new Set(names).size, names.length, 'names are unique');
  for (const { protocols } of routes) assert.ok(['https', 'grpcs'].includes(protocols.join()));
  const paths: string[] = routes.flatMap(({ paths: own }: Fields) => own);
  checkPaths((path) =>
    paths.some((rule) =>
      rule.startsWith('~') ? new RegExp(`^${rule.slice(1)}`).test(path) : path.startsWith(rule),
    ),
  );
  const enabled = plugins.map(({ name }: Fields) => name);
  assert.deepEqual(enabled, ['key-auth', 'rate-limiting', 'request-size-limiting']);
  const credentials = consumers.flatMap(({ keyauth_credentials: keys }: Fields) => keys);
  for (const { key } of credentials) assert.match(key, /^REPLACE/, 'the example has no secret');
});

test('Envoy routes predictions over TLS to clusters that exist', () => {
  const { listeners, clusters } = readYaml('envoy.yaml').static_resources;
  const known = clusters.map(({ name }: Fields) => name);
  for (const { name, load_assignment: assignment } of clusters) {
    assert.equal(assignment.cluster_name, name);
  }
  const [chain] = listeners[0].filter_chains;
  assert.match(chain.transport_socket.typed_config['@type'], /DownstreamTlsContext$/);
  const manager = chain.filters[0].typed_config;
  assert.equal(manager.use_remote_address, true, 'x-forwarded-for of clients is not believed');
  assert.match(manager.http_filters.at(-1).name, /router$/, 'the router is last');
  const { routes } = manager.route_config.virtual_hosts[0];
  for (const { route } of routes) assert.ok(known.includes(route.cluster), route.cluster);
  checkPaths((path) =>
    routes.some(({ match }: Fields) =>
      match.path === undefined ? path.startsWith(match.prefix) : path === match.path,
    ),
  );
});
