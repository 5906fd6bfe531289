/**
 * Rollback on a fleet of real servers, four shards with two replicas each. Its duration is
 * reported, not asserted.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { formatFleet } from '../../../lib/core/fleet.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { freePort } from '../../platform/support/free-port.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { RunningProcess, waitFor } from '../../support/processes.ts';
import { AUDIT } from '../support/host.ts';
import { buildVersion, createWorkspace, type Workspace } from '../support/workspace.ts';

const SHARDS = 4;

interface HostView {
  readonly servers: readonly {
    readonly pid: number;
    readonly answers: boolean;
    readonly bundles: readonly { readonly active?: string; readonly held: readonly string[] }[];
  }[];
}

/** One host with all servers, which its agent starts. */
async function writeHost(
  place: Workspace,
): Promise<{ config: string; fleet: string; listen: string }> {
  const first = await freePort(2 * SHARDS + 1);
  const ports = Array.from({ length: 2 * SHARDS + 1 }, (_, i) => first + i);
  const listen = `127.0.0.1:${ports.pop()}`;
  const config = join(place.folder, 'agent.yaml');
  writeFileSync(
    config,
    [
      `repository: ${place.repository}`,
      `data-dir: ${place.dataDir}`,
      'bundles: [{name: ctr}]',
      `listen: ${listen}`,
      'supervise: true',
      'servers:',
      ...ports.map((port, i) => `  - {shard: ${i % SHARDS}, shard-num: ${SHARDS}, port: ${port}}`),
    ].join('\n'),
  );
  const fleet = join(place.folder, 'fleet.json');
  const replica = (i: number) => {
    const data = `127.0.0.1:${ports[i]}`;
    return { data, control: data, group: 'default', agent: listen };
  };
  const shards = Array.from({ length: SHARDS }, (_, i) => [replica(i), replica(i + SHARDS)]);
  writeFileSync(
    fleet,
    formatFleet({ bundles: new Map([['ctr', [{ shardNum: SHARDS, shards }]]]) }),
  );
  return { config, fleet, listen };
}

test('a rollback reaches every replica, even right after a restart of all servers', async (t) => {
  const place = createWorkspace(t);
  for (const version of ['1', '2']) {
    await buildVersion(place, version, { rows: 5000 + Number(version), shardNum: SHARDS });
  }
  const { config, fleet, listen } = await writeHost(place);
  // The agent polls every two seconds: a faster reaction comes from a poke.
  const host = new RunningProcess(t, 'cube-agent/main.js', ['run', '--config', config]);
  const look = (): Promise<HostView> =>
    fetch(`http://${listen}/agent/v1/status`).then((answer) => answer.json() as Promise<HostView>);
  const haveActive = (version: string, previous: string) => async () => {
    const { servers } = await look();
    return (
      servers.every(({ answers, bundles: [bundle] }) => {
        return answers && bundle?.active === version && bundle.held.includes(previous);
      }) || servers.map(({ bundles: [bundle] }) => bundle)
    );
  };
  const repository = openRepository(place.repository);
  await waitFor('the agent listens', () => host.messages().includes('listening'));
  const target = ['--repository', place.repository, '--bundle', 'ctr', '--fleet', fleet];
  for (const version of ['1', '2']) {
    const flags = ['--version', version, '--no-gate', '--watch-ms', '0'];
    const { code, stderr } = await runAgentCommand('rollout', ...target, ...flags);
    assert.equal(code, 0, stderr);
  }
  await waitFor('all at 2', haveActive('2', '1'));

  const goBack = async (from: string): Promise<string> => {
    const flags = ['--from', from, '--reason', 'bad', '--wait'];
    const { code, stdout, stderr } = await runAgentCommand('rollback', ...target, ...flags);
    assert.equal(code, 0, stderr);
    return /\((\d+) ms\)/.exec(stdout)?.[1] ?? '';
  };
  t.diagnostic(`rollback of 4 × 2 replicas: ${await goBack('2')} ms after the entry was written`);
  assert.deepEqual((await repository.readChannel('ctr', 'stable')).pointer?.version, '1');

  await buildVersion(place, '3', { rows: 5003, shardNum: SHARDS });
  await repository.activate('ctr', 'stable', { version: '3', ...AUDIT });
  await waitFor('all at 3', haveActive('3', '1'));
  const killed = new Set((await look()).servers.map(({ pid }) => pid));
  for (const pid of killed) process.kill(pid, 'SIGKILL');
  const isBack = async () => {
    const { servers } = await look();
    return servers.every(({ pid, answers, bundles }) => {
      const held = bundles[0]?.held ?? [];
      return !killed.has(pid) && answers && held.includes('1') && held.includes('3');
    });
  };
  await waitFor('the servers are back with what they are to hold', isBack);
  t.diagnostic(`right after all servers were restarted: ${await goBack('3')} ms`);
  await waitFor('all at 1', haveActive('1', '1'));
  const again = await runAgentCommand('rollout', ...target, '--version', '3', '--no-gate');
  assert.equal(again.code, 1);
  assert.match(again.stderr, /version 3 of ctr is quarantined/);
});
