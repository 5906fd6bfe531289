/** What deploy/ holds can be used: units and manifests whose commands exist, with probes, drains and locked-down processes. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { parseAllDocuments } from 'yaml';
import { parseFleet } from '../../lib/core/fleet.ts';
import { commandFaults, type World } from './docs.ts';

const root = join(import.meta.dirname, '..', '..', '..');
const text = (path: string): string => readFileSync(join(root, 'deploy', path), 'utf8');

const world: World = {
  paths: new Set(),
  anchors: () => undefined,
  help: (program, command) => {
    const args = [join(root, 'dist', program, 'main.js'), ...(command?.split(' ') ?? []), '--help'];
    const { status, stdout } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    return status === 0 ? stdout : undefined;
  },
};

test('every systemd unit runs a command that exists, as nobody special, and ends gracefully', () => {
  const units = readdirSync(join(root, 'deploy/systemd'));
  assert.equal(units.length, 3);
  for (const unit of units) {
    const lines = text(`systemd/${unit}`).split('\n');
    const settingOf = (key: string): string =>
      lines.find((line) => line.startsWith(`${key}=`))?.slice(key.length + 1) ?? '';
    const [, program = '', rest = ''] =
      /^\/opt\/hypercube\/bin\/([\w-]+)(.*)$/.exec(settingOf('ExecStart')) ?? [];
    assert.deepEqual(commandFaults(unit, program, rest, world), []);
    assert.deepEqual(
      ['User', 'NoNewPrivileges', 'ProtectSystem', 'Restart', 'KillMode'].map(settingOf),
      ['hypercube', 'true', 'strict', 'always', 'mixed'],
    );
    assert.ok(Number(settingOf('TimeoutStopSec')) >= 30);
    for (const line of lines) assert.match(line, /^($|#|\[[A-Z][a-z]+\]$|[A-Z][A-Za-z]*=)/);
  }
});

interface Container {
  readonly name: string;
  readonly command: readonly string[];
  readonly args: readonly string[];
  readonly livenessProbe: { readonly httpGet: { readonly path: string } };
  readonly readinessProbe?: { readonly httpGet: { readonly path: string } };
  readonly lifecycle?: object;
  readonly securityContext: { readonly readOnlyRootFilesystem: boolean };
  readonly resources: { readonly limits: { readonly memory: string } };
}

interface Resource {
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly data?: Readonly<Record<string, string>>;
  readonly spec: {
    readonly selector?: { readonly matchLabels?: object };
    readonly template?: {
      readonly metadata: { readonly labels: object };
      readonly spec: {
        readonly containers: readonly Container[];
        readonly terminationGracePeriodSeconds: number;
      };
    };
  };
}

function resources(path: string): Resource[] {
  return parseAllDocuments(text(path)).map((document) => {
    assert.deepEqual(document.errors, []);
    return document.toJS() as Resource;
  });
}

test('Kubernetes: shards are StatefulSets, serving is a Deployment; every container has its probes and a command that exists', () => {
  const all = [...resources('kubernetes/shards.yaml'), ...resources('kubernetes/serving.yaml')];
  assert.deepEqual(
    all.map(({ kind }) => kind),
    [
      'Service',
      'PodDisruptionBudget',
      'StatefulSet',
      'ConfigMap',
      'Service',
      'PodDisruptionBudget',
      'Deployment',
    ],
  );
  const workloads = all.filter(({ spec }) => spec?.template !== undefined);
  for (const { spec } of workloads) {
    const { metadata, spec: pod } = spec.template!;
    assert.deepEqual(spec.selector?.matchLabels, metadata.labels);
    assert.ok(pod.terminationGracePeriodSeconds >= 30);
    for (const container of pod.containers) {
      const [program = ''] = container.command;
      assert.deepEqual(
        commandFaults(container.name, program, ` ${container.args.join(' ')}`, world),
        [],
      );
      assert.equal(container.livenessProbe.httpGet.path, '/healthz');
      assert.ok(
        container.securityContext.readOnlyRootFilesystem && container.resources.limits.memory,
      );
      if (program === 'cube-agent') continue;
      assert.equal(container.readinessProbe?.httpGet.path, '/readyz');
      assert.ok(container.lifecycle);
    }
  }
  const fleet = all.find(({ kind }) => kind === 'ConfigMap')?.data?.['fleet.json'] ?? '';
  const [map] = parseFleet(fleet, 'fleet.json').bundles.get('ctr-dnn') ?? [];
  assert.deepEqual(
    map?.shards.map((replicas) => replicas.length),
    [2, 2, 2, 2],
  );
});

test('every alert has an expression, a severity and words for people, and names a metric that is documented', () => {
  const [rules] = parseAllDocuments(text('prometheus/alerts.yaml')).map((document) =>
    document.toJS(),
  );
  const documented = ['agent.md', 'server.md', 'serving.md', 'operations.md']
    .map((page) => readFileSync(join(root, 'docs', page), 'utf8'))
    .join('\n');
  const alerts = rules.groups.flatMap(({ rules }: { rules: unknown[] }) => rules);
  assert.ok(alerts.length >= 6);
  for (const { alert, expr, labels, annotations } of alerts) {
    assert.match(alert, /^Hypercube[A-Z]/);
    assert.ok(['warning', 'critical'].includes(labels.severity) && annotations.summary, alert);
    for (const [metric] of String(expr).matchAll(/hypercube_\w+/g)) {
      const short = metric.replace(/^hypercube_agent/, '…');
      assert.ok(
        documented.includes(metric) || documented.includes(short.replace('…_', '…')),
        metric,
      );
    }
  }
});
