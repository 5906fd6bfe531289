/**
 * The Kubernetes manifests of deploy/, as kustomize applies them: their fields and commands exist,
 * and fleet.json names exactly their pods.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { parseAllDocuments } from 'yaml';
import { parseFleet } from '../../lib/core/fleet.ts';
import { checkCommand, type World } from './docs.ts';
import { checkFields } from './kubernetes-fields.ts';
import { evaluate, type Node } from './kustomize.ts';

const root = join(import.meta.dirname, '..', '..', '..');
const folder = join(root, 'deploy', 'kubernetes');
const overlays = readdirSync(join(folder, 'overlays')).map((name) => join('overlays', name));

const helpTexts = new Map<string, string>();
const world: World = {
  paths: new Set(),
  anchors: () => undefined,
  help: (program, command = '') => {
    const args = [join(root, 'dist', program, 'main.js'), command, '--help'];
    const key = `${program} ${command}`;
    const run = () =>
      spawnSync(process.execPath, args.filter(Boolean), { encoding: 'utf8' }).stdout;
    helpTexts.set(key, helpTexts.get(key) ?? run());
    return helpTexts.get(key);
  },
};

/** Complaints about a workload: probes, drain, limits, commands and selectors. */
function checkWorkload({ kind, spec }: Node): string[] {
  const { metadata, spec: pod } = spec.template;
  const complaints: string[] = [];
  const require = (isRight: boolean, text: string): void => {
    if (!isRight) complaints.push(`${kind}: ${text}`);
  };
  const isSelected = JSON.stringify(spec.selector.matchLabels) === JSON.stringify(metadata.labels);
  require(isSelected, 'the selector differs from the labels');
  require(pod.terminationGracePeriodSeconds >= 30, 'no time to drain');
  require(pod.securityContext.runAsNonRoot === true, 'runs as root');
  for (const container of pod.containers) {
    const { name, command, args, livenessProbe, securityContext, resources } = container;
    complaints.push(...checkCommand(name, command[0], ` ${args.join(' ')}`, world));
    require(livenessProbe?.httpGet.path === '/healthz', `${name} has no liveness probe`);
    require(securityContext.readOnlyRootFilesystem === true, `${name} can write its image`);
    require(resources.limits?.memory !== undefined, `${name} has no memory limit`);
    if (name === 'cube-agent') continue;
    const { readinessProbe, lifecycle } = container;
    require(readinessProbe?.httpGet.path === '/readyz', `${name} has no readiness probe`);
    require(lifecycle?.preStop !== undefined, `${name} does not drain`);
  }
  return complaints;
}

const isWorkload = ({ spec }: Node): boolean => spec?.template !== undefined;

/** The lookup addresses of a StatefulSet's pods. */
function listAddresses({ metadata, spec }: Node): string[] {
  return Array.from(
    { length: spec.replicas },
    (_, i) => `${metadata.name}-${i}.${spec.serviceName}:8000`,
  );
}

/** Compares the shards of the fleet with the StatefulSets of an overlay. */
function checkFleet(resources: readonly Node[]): void {
  const map = resources.find(({ kind }) => kind === 'ConfigMap');
  const fleet = parseFleet(map?.['data']['fleet.json'], 'fleet.json');
  const [shards] = fleet.bundles.get('ctr-dnn') ?? [];
  const sets = resources.filter(({ kind }) => kind === 'StatefulSet');
  assert.equal(shards?.shardNum, sets.length);
  for (const [i, set] of sets.entries()) {
    const { args } = set['spec'].template.spec.containers[0];
    assert.deepEqual(args.slice(0, 2), [`--shard=${i}`, `--shard-num=${sets.length}`]);
    assert.deepEqual(
      shards?.shards[i]?.map(({ data }) => data),
      listAddresses(set),
    );
  }
}

test('both bases are valid manifests by themselves', () => {
  for (const base of ['base/shard', 'base/serving']) {
    const resources = evaluate(join(folder, base));
    assert.deepEqual(resources.flatMap(checkFields), []);
    assert.deepEqual(resources.filter(isWorkload).flatMap(checkWorkload), []);
  }
});

test('every overlay is a fleet whose pods fleet.json names', () => {
  assert.deepEqual(overlays, ['overlays/demo', 'overlays/production']);
  for (const overlay of overlays) {
    const resources = evaluate(join(folder, overlay));
    const names = resources.map(({ kind, metadata }) => `${kind} ${metadata.name}`);
    assert.equal(new Set(names).size, names.length);
    assert.deepEqual(resources.flatMap(checkFields), []);
    const workloads = resources.filter(isWorkload);
    assert.deepEqual(workloads.flatMap(checkWorkload), []);
    for (const { spec } of workloads) {
      const isBudget = ({ kind, spec: other }: Node): boolean =>
        kind === 'PodDisruptionBudget' &&
        JSON.stringify(other.selector) === JSON.stringify(spec.selector);
      assert.equal(resources.filter(isBudget).length, 1, JSON.stringify(spec.selector));
    }
    checkFleet(resources);
  }
});

test('unknown fields, missing probes and wrong fleets are found', () => {
  const [service, , set] = evaluate(join(folder, 'base/shard')) as [Node, Node, Node];
  const [server] = set['spec'].template.spec.containers;
  server.livenesProbe = server.livenessProbe;
  delete server.livenessProbe;
  delete server.lifecycle;
  service['spec'].ports[0].port = '8000';
  set['spec'].replicas = 1;
  assert.deepEqual([service, set].flatMap(checkFields), [
    'Service.spec.ports[0].port is not a number',
    'StatefulSet.spec.template.spec.containers[0] has no field livenesProbe',
  ]);
  assert.deepEqual(checkWorkload(set), [
    'StatefulSet: cube-server has no liveness probe',
    'StatefulSet: cube-server does not drain',
  ]);
  const [map] = evaluate(join(folder, 'base/serving')) as [Node];
  assert.throws(() => checkFleet([map, set]), /4 !== 1/);
});

const kustomize = [
  ['kustomize', 'build'],
  ['kubectl', 'kustomize'],
].find(([program = '']) => spawnSync(program, ['--help']).status === 0);

test('kustomize gives the same resources', { skip: !kustomize && 'no kustomize here' }, () => {
  const [program = '', command = ''] = kustomize ?? [];
  const byName = (resources: readonly Node[]): Record<string, Node> =>
    Object.fromEntries(resources.map((one) => [`${one['kind']} ${one['metadata'].name}`, one]));
  for (const overlay of overlays) {
    const args = [command, join(folder, overlay)];
    const { stdout, stderr, status } = spawnSync(program, args, { encoding: 'utf8' });
    assert.equal(status, 0, stderr);
    const built = parseAllDocuments(stdout).map((document) => document.toJS() as Node);
    assert.deepEqual(byName(built), byName(evaluate(join(folder, overlay))));
  }
});
