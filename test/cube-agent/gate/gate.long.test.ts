/** Verdicts of the gate on versions with one known defect each, with real serving processes. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { formatFleet } from '../../../lib/core/fleet.ts';
import { CubeServers } from '../../serving/stores/support/cube-servers.ts';
import { BUNDLE } from '../../serving/support/toy-bundle.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { DelayingProxy } from '../support/delaying-proxy.ts';
import { failedLimits, GateFixture, ROWS, scoredLines, VERSIONS } from '../support/gate-fixture.ts';

const ALL = ['first', 'equal', 'shifted', 'missing', 'reversed', 'broken'] as const;

/** A process that holds all versions stands for both sides. */
async function served(
  t: TestContext,
  versions: readonly string[],
): Promise<{ gated: GateFixture; address: string; ends: string[] }> {
  const gated = await GateFixture.create(t, versions);
  const serving = await gated.serve(t, versions);
  const address = serving.url.replace('http://', '');
  return { gated, address, ends: ['--candidate', address, '--baseline', address] };
}

test('an equal version passes; every bad version fails for its own defect', async (t) => {
  const { gated, ends } = await served(t, ALL);
  const expected: Record<string, [exit: number, limits: RegExp]> = {
    equal: [0, /^$/],
    shifted: [1, /driftMeanMax/],
    missing: [1, /unseenRiseMax,slotUnseenRiseMax/],
    reversed: [1, /aucDropMax,loglossRiseMax/],
    broken: [1, /answersBroken,errorsMax/],
  };
  for (const [version, [exit, limits]] of Object.entries(expected)) {
    const { code, stderr } = await gated.gate(version, ...ends);
    assert.equal(code, exit, `${version}: ${stderr}`);
    const report = await gated.readReport(version);
    assert.equal(report.verdict, exit === 0 ? 'pass' : 'fail');
    assert.match(failedLimits(report).join(), limits, version);
    assert.deepEqual([report.version, report.against], [version, 'first']);
  }
  const equal = await gated.readReport('equal');
  assert.equal(equal.findings.drift.rows, ROWS);
  assert.deepEqual([equal.findings.drift.largest, equal.findings.drift.psi], [0, 0]);
  assert.equal(equal.findings.candidate.quality.rows, ROWS * 0.9);
  assert.deepEqual(equal.findings.candidate.slots, equal.findings.baseline.slots);
  // A row on which the graph fails is reported alone; other rows of its request are scored.
  const { candidate } = (await gated.readReport('broken')).findings;
  assert.ok(candidate.rowsFailed < ROWS / 4, `${candidate.rowsFailed} rows`);
  assert.match(candidate.failedLines[0].message, /contains values that are not finite numbers/);
  // Golden rows with scores: the candidate must have them.
  const scored = join(gated.toys.folder, 'scored.jsonl');
  writeFileSync(scored, `${scoredLines().join('\n')}\n`);
  assert.equal((await gated.gate('equal', ...ends, '--golden', scored)).code, 0);
  assert.equal((await gated.readReport('equal')).findings.expected.rows, ROWS);
  assert.equal((await gated.gate('shifted', ...ends, '--golden', scored)).code, 1);
  assert.ok(failedLimits(await gated.readReport('shifted')).includes('expectedDifferenceMax'));
});

test('a slow version fails; a version without a baseline is checked alone', async (t) => {
  const { gated, address, ends } = await served(t, ['first', 'equal']);
  // A first version has no baseline; checks without one still run.
  const alone = await gated.gate('equal', ...ends, '--no-against', '--no-store', '--json');
  assert.equal(alone.code, 0, alone.stderr);
  const report = JSON.parse(alone.stdout);
  assert.equal(report.against, null);
  const outcomes = new Map(report.checks.map((c: { limit: string }) => [c.limit, c]));
  assert.equal((outcomes.get('driftMeanMax') as { outcome: string }).outcome, 'not checked');
  assert.equal((outcomes.get('errorsMax') as { outcome: string }).outcome, 'pass');
  assert.equal(await gated.countReports('equal'), 0);
  const proxy = await DelayingProxy.start(t, address, 400);
  const flags = ['--candidate', proxy.address, '--baseline', address, '--requests', '20'];
  const { code, stderr } = await gated.gate('equal', ...flags, '--limit', 'latencyP50RatioMax=1.2');
  assert.equal(code, 1, stderr);
  assert.deepEqual(failedLimits(await gated.readReport('equal')), ['latencyP50RatioMax']);
});

test('a gate without endpoints starts two processes, and shows the stored report', async (t) => {
  const gated = await GateFixture.create(t, ['first', 'equal']);
  const { code, stdout, stderr } = await gated.gate('equal');
  assert.equal(code, 0, stderr);
  assert.match(
    stdout,
    /^PASS {2}toy equal against first\n[\s\S]*stored as report 1 of version equal/,
  );
  const page = join(gated.toys.folder, 'report.html');
  const of = ['gate', '--repository', gated.toys.location, '--bundle', BUNDLE];
  const shown = await runAgentCommand(...of, '--show', 'equal', '--html', page);
  assert.equal(shown.code, 0);
  assert.ok(stdout.startsWith(shown.stdout.trimEnd()));
  assert.match(readFileSync(page, 'utf8'), /<svg[\s\S]*<\/html>/);
  assert.equal((await runAgentCommand(...of, '--show', 'first')).code, 2);
});

test('a gate reads rows from a fleet before any channel points to the version', async (t) => {
  const gated = await GateFixture.create(t, ['first', 'shifted']);
  const { repository, location, folder } = gated.toys;
  const servers = new CubeServers(BUNDLE, location);
  t.after(() => servers.stop());
  for (const version of ['first', 'shifted']) {
    await servers.load(await repository.readManifest(BUNDLE, version));
  }
  const fleet = join(folder, 'fleet.json');
  writeFileSync(fleet, formatFleet(servers.fleet));
  const { code, stderr } = await gated.gate('shifted', '--fleet', fleet);
  assert.equal(code, 1, stderr);
  assert.match(failedLimits(await gated.readReport('shifted')).join(), /driftMeanMax/);
});

test('a version that cannot be served fails with the reason', async (t) => {
  const gated = await GateFixture.create(t, ['first']);
  const graph = VERSIONS['equal']!.graph.subarray(0, 400);
  await gated.toys.publish(VERSIONS['equal']!, { 'model.onnx': graph });
  const { code, stdout } = await gated.gate('equal');
  assert.equal(code, 1);
  assert.match(stdout, /FAIL +the version can be served.*model\.onnx: onnxruntime cannot/);
  assert.deepEqual(failedLimits(await gated.readReport('equal')), ['served']);
});
