/** What goes wrong around a gate: it never passes a version by accident, never blames one for it, and leaves nothing behind. */
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
import { it, type TestContext } from 'node:test';
import { killAtEnd } from '../repository/fixtures.ts';
import { ServingProcess } from '../serving/serving-process.ts';
import { BUNDLE } from '../serving/toy-bundle.ts';
import { Gated } from './gated.ts';
import { agent, until } from './processes.ts';

const MAIN = join(import.meta.dirname, '..', '..', 'cube-agent', 'main.js');

/** A gate that would go on for minutes, in a temporary folder of its own. */
class RunningGate {
  readonly child: ChildProcess;
  readonly exit: Promise<number | null>;
  readonly temporary: string;
  stderr = '';

  constructor(t: TestContext, gated: Gated) {
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
    killAtEnd(t, this.child);
  }

  /** Its two serving processes, once both replay. */
  async servings(): Promise<number[]> {
    await until('two serving processes', () => childrenOf(this.child.pid!).length === 2);
    return childrenOf(this.child.pid!);
  }
}

/** As Linux tells. */
function childrenOf(pid: number): number[] {
  const text = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim();
  return text === '' ? [] : text.split(' ').map(Number);
}

function lives(pid: number): boolean {
  try {
    // A zombie has ended.
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
}

const children = `/proc/${process.pid}/task/${process.pid}/children`;
const skip = existsSync(children) ? false : `needs ${children}`;

it('a serving process that dies ends the gate with 3, the other one with it, and nothing stored', {
  skip,
}, async (t) => {
  const gated = await Gated.make(t, ['first', 'equal']);
  const gate = new RunningGate(t, gated);
  const [one, other] = await gate.servings();
  process.kill(one!, 'SIGKILL');
  assert.equal(await gate.exit, 3);
  assert.match(
    gate.stderr,
    /the gate could not run: the (candidate|baseline)('s serving process.*ended| is gone)/,
  );
  await until('the other has ended', () => !lives(other!));
  assert.equal(await gated.reports('equal'), 0);
  assert.deepEqual(readdirSync(gate.temporary), []);
});

it('a gate that is killed leaves no serving process; one that is told to stop leaves nothing', {
  skip,
}, async (t) => {
  const gated = await Gated.make(t, ['first', 'equal']);
  for (const signal of ['SIGKILL', 'SIGTERM'] as const) {
    const gate = new RunningGate(t, gated);
    const servings = await gate.servings();
    gate.child.kill(signal);
    assert.equal(await gate.exit, signal === 'SIGKILL' ? null : 3);
    await until(`no serving process after ${signal}`, () => !servings.some(lives));
    // What the killed one left, the next one removed before it began.
    assert.equal(readdirSync(gate.temporary).length, signal === 'SIGKILL' ? 1 : 0);
  }
  assert.equal(await gated.reports('equal'), 0);
});

it('killed once it has compared, or stored a part of its report, the next one tells all', async (t) => {
  const gated = await Gated.make(t, ['first', 'equal']);
  const serving = await gated.serve(t, ['first', 'equal']);
  const address = serving.url.replace('http://', '');
  const ends = ['--candidate', address, '--baseline', address];
  for (const fault of ['gate.compared:kill', 'gate.reported:kill']) {
    assert.equal((await gated.gateWithFault(fault, 'equal', ...ends)).code, null);
    assert.equal(await gated.reports('equal'), fault === 'gate.reported:kill' ? 1 : 0);
  }
  const shown = await agent('gate', ...gated.flags('equal'), '--show', 'equal');
  assert.equal(shown.code, 0, shown.stderr);
  assert.match(shown.stdout, /pass/);
  assert.equal((await gated.gate('equal', ...ends)).code, 0);
  assert.equal(await gated.reports('equal'), 2);

  // One that a rollout started ends with it.
  const long = [...gated.flags('equal'), '--golden', gated.golden, '--requests', '100000'];
  const child = spawn(process.execPath, [MAIN, 'gate', ...long, ...ends], {
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
  });
  killAtEnd(t, child);
  child.disconnect();
  assert.deepEqual(await once(child, 'exit'), [3, null]);
});

it('what is wrong with the golden rows, the policy or the versions is said, and is 2', async (t) => {
  const gated = await Gated.make(t, ['first', 'equal']);
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
  await refused(
    /policy\.json: driftMax: expected no such limit \(there are: errorsMax, /,
    '--policy',
    policy,
  );
  await refused(/--limit aucMin=x: expected/, '--limit', 'aucMin=x');
  await refused(/has no version nine of toy/, '--against', 'nine');
  const away = await gated.gate('equal', ...ends, '--baseline', '127.0.0.1:1');
  assert.match(away.stderr, /the baseline is gone: no serving answers/);
  assert.equal(away.code, 3, 'another time it may run');
  const key = join(gated.toys.folder, 'key.pem');
  assert.equal((await agent('keygen', '--out', key)).code, 0);
  await refused(
    /none of the trusted keys|signed/,
    '--trusted-keys',
    `${key}.pub`,
    '--against',
    'first',
  );
  // Rows that both versions refuse: the line is damaged, not the version.
  appendFileSync(
    gated.golden,
    '{"dense":[1,2],"categorical":["a","b","c"]}\n{"dense":[1],"categorical":[]}\n',
  );
  await refused(/line 402: .*rows\[0\]\.dense/);
  appendFileSync(gated.golden, '{"dense":');
  await refused(/line 403: not JSON/);
  assert.equal(await gated.reports('equal'), 0);
});

it("a bundle's policy holds for its versions; a file and flags go before it", async (t) => {
  const gated = await Gated.make(t, ['first', 'shifted']);
  const serving = await gated.serve(t, ['first', 'shifted']);
  const address = serving.url.replace('http://', '');
  const ends = ['--candidate', address, '--baseline', address];
  const generous = { driftMeanMax: 1, driftP99Max: 1, psiMax: null, aucDropMax: 1 };
  const limits = { ...generous, loglossRiseMax: 100, calibrationShiftMax: 100 };
  const log = gated.toys.repository.policy(BUNDLE);
  await log.append(undefined, { limits, by: 'ann', reason: 'trained otherwise' });
  assert.equal((await gated.gate('shifted', ...ends)).code, 0);
  assert.equal(
    (await gated.report('shifted')).policy.split(',')[0],
    'entry 1 of the policy of toy',
  );
  assert.equal((await gated.gate('shifted', ...ends, '--limit', 'driftMeanMax=0.001')).code, 1);
  const strict = join(gated.toys.folder, 'strict.json');
  writeFileSync(strict, '{}');
  assert.equal((await gated.gate('shifted', ...ends, '--policy', strict)).code, 1);
  assert.equal(await gated.reports('shifted'), 3);
});

it('what serving has recorded is golden as it is, redacted features included', async (t) => {
  const gated = await Gated.make(t, ['first', 'equal']);
  const recorded = join(gated.toys.folder, 'recorded.jsonl');
  const serving = await ServingProcess.start(t, [
    ...['--repository', gated.toys.location, '--bundle', BUNDLE, '--channel', 'stable,next'],
    ...[
      '--record',
      recorded,
      '--record-share',
      '1',
      '--record-redact',
      'C2,I1',
      '--instances',
      '1',
    ],
  ]);
  await gated.toys.activate('equal', 'next');
  await serving.until('/v1/status', ({ body }) => body.held.length === 2);
  const features = { dense: [1, 2], categorical: ['f1', 'f2', null] };
  const keyed = { scaled: [0.5, 0.25], keys: ['1', '2', '3'] };
  for (const row of [features, keyed, features]) {
    await serving.post('/v1/ctr:predict', JSON.stringify({ rows: [row, row] }));
  }
  await until('six rows', () => readFileSync(recorded, 'utf8').split('\n').length === 7);
  const address = serving.url.replace('http://', '');
  const ends = ['--candidate', address, '--baseline', address];
  const { code, stderr } = await gated.gate('equal', ...ends, '--golden', recorded);
  assert.equal(code, 0, stderr);
  const { golden, findings } = await gated.report('equal');
  assert.deepEqual([golden.rows, golden.labelled, findings.drift.rows], [6, 0, 6]);
});
