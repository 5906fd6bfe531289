/**
 * The systemd units and alerts of deploy/, the image and the compose file can be used: what they
 * run and read exists, in locked-down processes. kubernetes.test.ts has the manifests.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { parseAllDocuments } from 'yaml';
import { parseFleet } from '../../lib/core/fleet.ts';
import { HUGE_PAGES_FILE } from '../../lib/platform/machine.ts';
import { checkCommand, type World } from './docs.ts';

const root = join(import.meta.dirname, '..', '..', '..');
const readDeployFile = (path: string): string => readFileSync(join(root, 'deploy', path), 'utf8');

const world: World = {
  paths: new Set(),
  anchors: () => undefined,
  help: (program, command) => {
    const args = [join(root, 'dist', program, 'main.js'), ...(command?.split(' ') ?? []), '--help'];
    const { status, stdout } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    return status === 0 ? stdout : undefined;
  },
};

test('every systemd unit runs an existing command unprivileged and stops gracefully', () => {
  const units = readdirSync(join(root, 'deploy/systemd'));
  assert.equal(units.length, 3);
  for (const unit of units) {
    const lines = readDeployFile(`systemd/${unit}`).split('\n');
    const getSetting = (key: string): string =>
      lines.find((line) => line.startsWith(`${key}=`))?.slice(key.length + 1) ?? '';
    const [, program = '', rest = ''] =
      /^\/opt\/hypercube\/bin\/([\w-]+)(.*)$/.exec(getSetting('ExecStart')) ?? [];
    assert.deepEqual(checkCommand(unit, program, rest, world), []);
    assert.deepEqual(
      ['User', 'NoNewPrivileges', 'ProtectSystem', 'Restart', 'KillMode'].map(getSetting),
      ['hypercube', 'true', 'strict', 'always', 'mixed'],
    );
    assert.ok(Number(getSetting('TimeoutStopSec')) >= 30);
    for (const line of lines) assert.match(line, /^($|#|\[[A-Z][a-z]+\]$|[A-Z][A-Za-z]*=)/);
  }
});

test('the tmpfiles entry writes the setting of huge pages that servers read', () => {
  const lines = readDeployFile('tmpfiles.d/hypercube.conf').split('\n');
  const entries = lines.filter((line) => line !== '' && !line.startsWith('#'));
  assert.deepEqual(entries, [`w ${HUGE_PAGES_FILE} - - - - always`]);
});

interface ComposeService {
  readonly command: readonly string[];
  readonly configs?: readonly string[];
  readonly volumes: readonly string[];
  readonly depends_on?: Readonly<Record<string, object>>;
}

/** The command lines of a service: its own, or those of its shell. */
function listCommandLines({ command }: ComposeService): string[] {
  const [program, flag, script = ''] = command;
  return program === 'sh' && flag === '-c' ? script.split('&&') : [command.join(' ')];
}

test('the compose file runs existing commands on what it declares', () => {
  const text = readFileSync(join(root, 'compose.yaml'), 'utf8');
  const [document] = parseAllDocuments(text, { merge: true });
  assert.ok(document);
  assert.deepEqual(document.errors, []);
  const { services, volumes, configs } = document.toJS() as {
    services: Record<string, ComposeService>;
    volumes: object;
    configs: Record<string, { content: string }>;
  };
  for (const [name, service] of Object.entries(services)) {
    for (const line of listCommandLines(service)) {
      const [program = '', ...rest] = line.trim().split(' ');
      const folder = existsSync(join(root, 'dist', program)) ? program : `tools/${program}`;
      assert.deepEqual(checkCommand(name, folder, ` ${rest.join(' ')}`, world), []);
    }
    for (const config of service.configs ?? []) assert.ok(configs[config], `${name}: ${config}`);
    for (const volume of service.volumes) {
      const [source = ''] = volume.split(':');
      assert.ok(source.startsWith('./') ? existsSync(join(root, source)) : source in volumes);
    }
    for (const other of Object.keys(service.depends_on ?? {})) assert.ok(services[other]);
  }
  const fleet = parseFleet(configs['fleet.json']?.content ?? '', 'fleet.json');
  const servers = fleet.bundles
    .get('ctr-dnn')?.[0]
    ?.shards.flat()
    .map(({ data }) => data);
  const names = Object.keys(services).filter((name) => name.startsWith('shard-'));
  assert.deepEqual(
    servers,
    names.map((name) => `${name}:8000`),
  );
});

test('the image has a health check, an own user, and the version of the package', () => {
  const text = readFileSync(join(root, 'Dockerfile'), 'utf8');
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  assert.match(text, new RegExp(`/tmp/hypercube-${version}\\.tgz`));
  assert.match(text, /^USER 10001/m);
  assert.match(text, /^HEALTHCHECK /m);
});

test('every alert has a severity and a summary, and its metrics are documented', () => {
  const [rules] = parseAllDocuments(readDeployFile('prometheus/alerts.yaml')).map((document) =>
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
