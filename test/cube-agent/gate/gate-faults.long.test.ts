/**
 * Faults around a gate: it never passes a version by accident, never fails one without evidence,
 * and leaves no processes or files.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { killOnTestEnd } from '../../repository/support/fixtures.ts';
import { ServingProcess } from '../../serving/support/serving-process.ts';
import { BUNDLE } from '../../serving/support/toy-bundle.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { waitFor } from '../../support/processes.ts';
import { GateFixture } from '../support/gate-fixture.ts';

const MAIN = join(import.meta.dirname, '..', '..', '..', 'cube-agent', 'main.js');

/** A gate that would go on for minutes, in a temporary folder of its own. */
class RunningGate {
  readonly child: ChildProcess;
  readonly exit: Promise<number | null>;
  readonly temporary: string;
  stderr = '';

  constructor(t: TestContext, gated: GateFixture) {
    this.temporary = join(gated.toys.folder, 'tmp');
    mkdirSync(this.temporary, { recursive: true });
    const flags = [...gated.flags('equal'), '--golden', gated.golden, '--requests', '100000'];
    this.child = spawn(process.execPath, [MAIN, 'gate', ...flags], {
      stdio: ['ignore', 'ignore', 'pipe'],
      env: { ...process.env, TMPDIR: this.temporary },
    });
    this.child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      this.stderr += text;
    });
    this.exit = once(this.child, 'exit').then(([code]) => code as number | null);
    killOnTestEnd(t, this.child);
  }

  /** Its two serving processes, once both replay. */
  async servings(): Promise<number[]> {
    await waitFor('two serving processes', () => listChildren(this.child.pid!).length === 2);
    return listChildren(this.child.pid!);
  }
}

/** As Linux tells. */
function listChildren(pid: number): number[] {
  const text = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim();
  return text === '' ? [] : text.split(' ').map(Number);
}

function isAlive(pid: number): boolean {
  try {
    // A zombie has ended.
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
}

const children = `/proc/${process.pid}/task/${process.pid}/children`;
const skip = existsSync(children) ? false : `needs ${children}`;

test('a serving process that dies ends the gate with exit code 3 and no report', {
  skip,
}, async (t) => {
  const gated = await GateFixture.create(t, ['first', 'equal']);
  const gate = new RunningGate(t, gated);
  const [one, other] = await gate.servings();
  assert.ok(one && other);
  process.kill(one, 'SIGKILL');
  assert.equal(await gate.exit, 3);
  assert.match(
    gate.stderr,
    /could not run: the (serving process of .*ended|(candidate|baseline) does not answer any)/,
  );
  await waitFor('the other has ended', () => !isAlive(other));
  assert.equal(await gated.countReports('equal'), 0);
  assert.deepEqual(readdirSync(gate.temporary), []);
});

test('a killed gate leaves no serving process; a stopped gate leaves no files', {
  skip,
}, async (t) => {
  const gated = await GateFixture.create(t, ['first', 'equal']);
  for (const signal of ['SIGKILL', 'SIGTERM'] as const) {
    const gate = new RunningGate(t, gated);
    const servings = await gate.servings();
    gate.child.kill(signal);
    assert.equal(await gate.exit, signal === 'SIGKILL' ? null : 3);
    await waitFor(`no serving process after ${signal}`, () => !servings.some(isAlive));
    // The next gate removes the files of the killed one before it starts.
    assert.equal(readdirSync(gate.temporary).length, signal === 'SIGKILL' ? 1 : 0);
  }
  assert.equal(await gated.countReports('equal'), 0);
});

test('a gate that is killed while it stores its report can be run again', async (t) => {
  const gated = await GateFixture.create(t, ['first', 'equal']);
  const serving = await gated.serve(t, ['first', 'equal']);
  const address = serving.url.replace('http://', '');
  const ends = ['--candidate', address, '--baseline', address];
  for (const fault of ['gate.compared:kill', 'gate.reported:kill']) {
    assert.equal((await gated.gateWithFault(fault, 'equal', ...ends)).code, null);
    assert.equal(await gated.countReports('equal'), fault === 'gate.reported:kill' ? 1 : 0);
  }
  const shown = await runAgentCommand('gate', ...gated.flags('equal'), '--show', 'equal');
  assert.equal(shown.code, 0, shown.stderr);
  assert.match(shown.stdout, /pass/);
  assert.equal((await gated.gate('equal', ...ends)).code, 0);
  assert.equal(await gated.countReports('equal'), 2);

  // A gate that a rollout started ends with it.
  const long = [...gated.flags('equal'), '--golden', gated.golden, '--requests', '100000'];
  const child = spawn(process.execPath, [MAIN, 'gate', ...long, ...ends], {
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
  });
  killOnTestEnd(t, child);
  child.disconnect();
  assert.deepEqual(await once(child, 'exit'), [3, null]);
});

test('invalid golden rows, policies and versions are reported with exit code 2', async (t) => {
  const gated = await GateFixture.create(t, ['first', 'equal']);
  const serving = await gated.serve(t, ['first', 'equal']);
  const address = serving.url.replace('http://', '');
  const ends = ['--candidate', address, '--baseline', address];
  const refused = async (expected: RegExp, ...flags: string[]): Promise<void> => {
    const { code, stderr } = await gated.gate('equal', ...ends, ...flags);
    assert.match(stderr, expected);
    assert.equal(code, 2, stderr);
  };
  const policy = join(gated.toys.folder, 'policy.json');
  writeFileSync(policy, '{"driftMax": 1}');
  await refused(/policy\.json: unknown field "driftMax" \(/, '--policy', policy);
  await refused(/--limit aucMin=x: expected/, '--limit', 'aucMin=x');
  await refused(/has no version nine of toy/, '--against', 'nine');
  const away = await gated.gate('equal', ...ends, '--baseline', '127.0.0.1:1');
  assert.match(away.stderr, /the baseline does not answer any more: no serving answers/);
  assert.equal(away.code, 3, 'another time it may run');
  const key = join(gated.toys.folder, 'key.pem');
  assert.equal((await runAgentCommand('keygen', '--out', key)).code, 0);
  await refused(
    /none of the trusted keys|signed/,
    ...toArguments({ trustedKeys: `${key}.pub`, against: 'first' }),
  );
  // Rows that both versions refuse are invalid lines, not a fault of a version.
  appendFileSync(
    gated.golden,
    '{"dense":[1,2],"categorical":["a","b","c"]}\n{"dense":[1],"categorical":[]}\n',
  );
  await refused(/line 402: .*rows\[0\]\.dense/);
  appendFileSync(gated.golden, '{"dense":');
  await refused(/line 403: not JSON/);
  assert.equal(await gated.countReports('equal'), 0);
});

test("a bundle's policy holds for its versions; a file and flags go before it", async (t) => {
  const gated = await GateFixture.create(t, ['first', 'shifted']);
  const serving = await gated.serve(t, ['first', 'shifted']);
  const address = serving.url.replace('http://', '');
  const ends = ['--candidate', address, '--baseline', address];
  const generous = { driftMeanMax: 1, driftP99Max: 1, psiMax: null, aucDropMax: 1 };
  const limits = { ...generous, loglossRiseMax: 100, calibrationShiftMax: 100 };
  const log = gated.toys.repository.policyLog(BUNDLE);
  await log.append(undefined, { limits, by: 'ann', reason: 'trained otherwise' });
  assert.equal((await gated.gate('shifted', ...ends)).code, 0);
  assert.equal(
    (await gated.readReport('shifted')).policy.split(',')[0],
    'entry 1 of the policy of toy',
  );
  assert.equal((await gated.gate('shifted', ...ends, '--limit', 'driftMeanMax=0.001')).code, 1);
  const strict = join(gated.toys.folder, 'strict.json');
  writeFileSync(strict, '{}');
  assert.equal((await gated.gate('shifted', ...ends, '--policy', strict)).code, 1);
  assert.equal(await gated.countReports('shifted'), 3);
});

test('rows recorded by serving are valid golden rows, even with redacted features', async (t) => {
  const gated = await GateFixture.create(t, ['first', 'equal']);
  const recorded = join(gated.toys.folder, 'recorded.jsonl');
  const serving = await ServingProcess.start(
    t,
    toArguments({
      repository: gated.toys.location,
      bundle: BUNDLE,
      channel: 'stable,next',
      record: recorded,
      recordShare: 1,
      recordRedact: 'C2,I1',
      instances: 1,
    }),
  );
  await gated.toys.activate('equal', 'next');
  await serving.waitFor('/v1/status', ({ body }) => body.held.length === 2);
  const features = { dense: [1, 2], categorical: ['f1', 'f2', null] };
  const keyed = { scaled: [0.5, 0.25], keys: ['1', '2', '3'] };
  for (const row of [features, keyed, features]) {
    await serving.post('/v1/ctr:predict', JSON.stringify({ rows: [row, row] }));
  }
  await waitFor('six rows', () => readFileSync(recorded, 'utf8').split('\n').length === 7);
  const address = serving.url.replace('http://', '');
  const ends = ['--candidate', address, '--baseline', address];
  const { code, stderr } = await gated.gate('equal', ...ends, '--golden', recorded);
  assert.equal(code, 0, stderr);
  const { golden, findings } = await gated.readReport('equal');
  assert.deepEqual([golden.rows, golden.labelled, findings.drift.rows], [6, 0, 6]);
});
