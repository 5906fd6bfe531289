/** Toy versions that differ from version 1 in one known way each, golden rows with labels drawn from version 1's own scores. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { slotSpecToJson } from '../../lib/core/slots.ts';
import { ServingProcess } from '../serving/serving-process.ts';
import { BUNDLE, keyOf, ToyBundle, toyRows } from '../serving/toy-bundle.ts';
import { ToyRepository } from '../serving/toy-service.ts';
import { agent, agentWithFault, type Finished } from './processes.ts';

const SEED = 101;
export const ROWS = 400;

type Rows = Map<bigint, Float32Array>;

const like = (version: string, change: (rows: Rows) => void = () => undefined): ToyBundle => {
  const toy = new ToyBundle({ version, seed: SEED });
  for (const { rows } of toy.tables) change(rows as Rows);
  return toy;
};

/** What differs, by version. */
export const VERSIONS: Readonly<Record<string, ToyBundle>> = {
  first: like('first'),
  equal: like('equal'),
  shifted: like('shifted', (rows) => {
    for (const [key, row] of rows)
      rows.set(
        key,
        row.map((value) => value + 0.5),
      );
  }),
  missing: like('missing', (rows) => {
    for (const key of rows.keys()) if (key % 2n === 0n) rows.delete(key);
  }),
  // The same graph and tables, and the wrong column for a click.
  reversed: like('reversed'),
  broken: like('broken', (rows) => {
    for (let feature = 0; feature <= 40; feature += 1) {
      if (feature % 8 === 0) rows.get(keyOf(0, `f${feature}`))?.fill(Number.NaN);
    }
  }),
};

export class Gated {
  readonly toys: ToyRepository;
  readonly golden: string;

  private constructor(toys: ToyRepository) {
    this.toys = toys;
    this.golden = join(toys.folder, 'golden.jsonl');
  }

  /** Publishes versions; the channel stands at the first. */
  static async make(t: TestContext, versions: readonly string[]): Promise<Gated> {
    const gated = new Gated(new ToyRepository(t));
    for (const version of versions) {
      const toy = VERSIONS[version]!;
      const { features, ...spec } = toy.slotSpec;
      const click = { output: 'prob', column: 0 };
      const reversed = slotSpecToJson({ ...spec, features: { ...features!, click } });
      const files = { 'slots.json': new TextEncoder().encode(JSON.stringify(reversed)) };
      await gated.toys.publish(toy, version === 'reversed' ? files : {});
    }
    await gated.toys.activate(versions[0]!);
    writeFileSync(gated.golden, `${goldenLines().join('\n')}\n`);
    return gated;
  }

  /** One serving process that holds every version, each by a channel of its own. */
  async serve(t: TestContext, versions: readonly string[]): Promise<ServingProcess> {
    for (const version of versions) await this.toys.activate(version, version);
    const serving = await ServingProcess.start(t, [
      ...['--repository', this.toys.location, '--bundle', BUNDLE, '--instances', '1'],
      ...['--channel', versions.join(','), '--warm-up', 'synthetic'],
    ]);
    await serving.until('/v1/status', ({ body }) => body.held.length === versions.length);
    return serving;
  }

  flags(version: string): string[] {
    return ['--repository', this.toys.location, '--bundle', BUNDLE, '--version', version];
  }

  /** A short run; latency is not judged unless the test says so: the machine is shared. */
  gate(version: string, ...more: string[]): Promise<Finished> {
    return agent(...this.#shortRun(version, more));
  }

  /** The same, killed or failing at a fault point. */
  gateWithFault(fault: string, version: string, ...more: string[]): Promise<Finished> {
    return agentWithFault(fault, ...this.#shortRun(version, more));
  }

  #shortRun(version: string, more: readonly string[]): string[] {
    const latency = ['P50RatioMax', 'P99RatioMax'].flatMap((name) => [
      ...['--limit', `latency${name}=none`],
    ]);
    const pace = ['--rate', '400', '--requests', '1', '--timeout-ms', '20000'];
    const what = [...this.flags(version), '--golden', this.golden];
    return ['gate', ...what, ...pace, ...latency, ...more];
  }

  /** The newest report. */
  async report(version: string): Promise<ReturnType<typeof JSON.parse>> {
    const log = this.toys.repository.rollout(BUNDLE, version);
    return JSON.parse(await log.gateReport(await log.newestGateReport(), 'json'));
  }

  async reports(version: string): Promise<number> {
    return this.toys.repository.rollout(BUNDLE, version).newestGateReport();
  }
}

/** @returns the names of the limits that failed */
export function failedLimits(report: { checks: { limit: string; outcome: string }[] }): string[] {
  return report.checks.flatMap(({ limit, outcome }) => (outcome === 'fail' ? [limit] : []));
}

function goldenLines(): string[] {
  return toyRows(ROWS).map((row, i) => {
    const score = VERSIONS['first']!.score(row)[1];
    // Labels that follow the scores, and a part of the rows without.
    const label = i % 10 === 9 ? {} : { label: score > ((i * 37) % 100) / 100 ? 1 : 0 };
    return JSON.stringify({
      ...label,
      dense: row.dense.map((value) => (Number.isNaN(value) ? null : value)),
      categorical: row.categorical.map((value) => (value === '' ? null : value)),
    });
  });
}
