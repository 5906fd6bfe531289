/**
 * Toy versions that differ from the first in one known way each, and golden rows with labels drawn
 * from the first version's scores.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { slotSpecToJson } from '../../../lib/core/slots.ts';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { ServingProcess } from '../../serving/support/serving-process.ts';
import { BUNDLE, hashKey, ToyBundle, toyRows } from '../../serving/support/toy-bundle.ts';
import { ToyRepository } from '../../serving/support/toy-service.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { type CommandResult, runAgentCommandWithFault } from '../../support/processes.ts';

const SEED = 101;
export const ROWS = 400;

type Rows = Map<bigint, Float32Array>;

const createVariant = (
  version: string,
  change: (rows: Rows) => void = () => undefined,
): ToyBundle => {
  const toy = new ToyBundle({ version, seed: SEED });
  for (const { rows } of toy.tables) change(rows as Rows);
  return toy;
};

/** Versions by name; each has one known difference. */
export const VERSIONS: Readonly<Record<string, ToyBundle>> = {
  first: createVariant('first'),
  equal: createVariant('equal'),
  shifted: createVariant('shifted', (rows) => {
    for (const [key, row] of rows)
      rows.set(
        key,
        row.map((value) => value + 0.5),
      );
  }),
  missing: createVariant('missing', (rows) => {
    for (const key of rows.keys()) if (key % 2n === 0n) rows.delete(key);
  }),
  // The same graph and tables, but the wrong output column for a click.
  reversed: createVariant('reversed'),
  broken: createVariant('broken', (rows) => {
    for (let feature = 0; feature <= 40; feature += 1) {
      if (feature % 8 === 0) rows.get(hashKey(0, `f${feature}`))?.fill(Number.NaN);
    }
  }),
};

export class GateFixture {
  readonly toys: ToyRepository;
  readonly golden: string;

  private constructor(toys: ToyRepository) {
    this.toys = toys;
    this.golden = join(toys.folder, 'golden.jsonl');
  }

  /** Publishes versions and activates the first. */
  static async create(t: TestContext, versions: readonly string[]): Promise<GateFixture> {
    const gated = new GateFixture(new ToyRepository(t));
    for (const version of versions) {
      const toy = VERSIONS[version]!;
      const { features, ...spec } = toy.slotSpec;
      const click = { output: 'prob', column: 0 };
      const reversed = slotSpecToJson({ ...spec, features: { ...features!, click } });
      const files = { 'slots.json': new TextEncoder().encode(JSON.stringify(reversed)) };
      const golden = { 'golden.jsonl': new TextEncoder().encode(scoredLines().join('\n')) };
      const added = { reversed: files, equal: golden }[version] ?? {};
      await gated.toys.publish(toy, added);
    }
    await gated.toys.activate(versions[0]!);
    writeFileSync(gated.golden, `${goldenLines().join('\n')}\n`);
    return gated;
  }

  /** A serving process that has loaded every version, each through its own channel. */
  async serve(t: TestContext, versions: readonly string[]): Promise<ServingProcess> {
    for (const version of versions) await this.toys.activate(version, version);
    const serving = await ServingProcess.start(
      t,
      toArguments({
        repository: this.toys.location,
        bundle: BUNDLE,
        instances: 1,
        channel: versions.join(','),
        warmUp: 'synthetic',
      }),
    );
    await serving.waitFor('/v1/status', ({ body }) => body.held.length === versions.length);
    return serving;
  }

  flags(version: string): string[] {
    return ['--repository', this.toys.location, '--bundle', BUNDLE, '--version', version];
  }

  /** A short run without latency limits, since the machine is shared. */
  gate(version: string, ...more: string[]): Promise<CommandResult> {
    return runAgentCommand(...this.#shortRun(version, more));
  }

  /** The same command with a fault injected. */
  gateWithFault(fault: string, version: string, ...more: string[]): Promise<CommandResult> {
    return runAgentCommandWithFault(fault, ...this.#shortRun(version, more));
  }

  #shortRun(version: string, more: readonly string[]): string[] {
    const latency = ['P50RatioMax', 'P99RatioMax'].flatMap((name) => [
      '--limit',
      `latency${name}=none`,
    ]);
    const pace = ['--rate', '400', '--requests', '1', '--timeout-ms', '20000'];
    const what = [...this.flags(version), '--golden', this.golden];
    return ['gate', ...what, ...pace, ...latency, ...more];
  }

  /** The newest report. */
  async readReport(version: string): Promise<ReturnType<typeof JSON.parse>> {
    const log = this.toys.repository.rolloutLog(BUNDLE, version);
    return JSON.parse(await log.readGateReport(await log.findNewestGateReport(), 'json'));
  }

  async countReports(version: string): Promise<number> {
    return this.toys.repository.rolloutLog(BUNDLE, version).findNewestGateReport();
  }
}

/** @returns the names of the limits that failed */
export function failedLimits(report: { checks: { limit: string; outcome: string }[] }): string[] {
  return report.checks.flatMap(({ limit, outcome }) => (outcome === 'fail' ? [limit] : []));
}

function goldenLines(): string[] {
  return toyRows(ROWS).map((row, i) => {
    const score = VERSIONS['first']!.score(row)[1];
    // Labels follow the scores; every tenth row has none.
    const label = i % 10 === 9 ? {} : { label: score > ((i * 37) % 100) / 100 ? 1 : 0 };
    return JSON.stringify({
      ...label,
      dense: row.dense.map((value) => (Number.isNaN(value) ? null : value)),
      categorical: row.categorical.map((value) => (value === '' ? null : value)),
    });
  });
}

/** Golden rows that carry the scores of the first version. */
export function scoredLines(): string[] {
  const rows = toyRows(ROWS);
  return goldenLines().map((line, i) => {
    return JSON.stringify({ ...JSON.parse(line), score: VERSIONS['first']!.score(rows[i]!)[1] });
  });
}
