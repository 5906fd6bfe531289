/**
 * What a controller shows in its console: servers, versions with their history, rollouts, problems.
 * The repository is only read while a page is open.
 */
import type { ConsoleSource, ConsoleView } from '../../lib/console/console-feed.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Finding } from '../../lib/core/findings.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import { listRecentWarnings } from '../../lib/platform/recent-warnings.ts';
import type { BundleController } from '../rollout/bundle-controller.ts';
import type { BundleRolloutConfig } from '../rollout/rollout-config.ts';
import { toRolloutStatus } from '../rollout/rollout-status.ts';
import { Diagnoses } from './diagnoses.ts';
import type { FleetWatch } from './fleet-watch.ts';
import type { GateRuns } from './gate-runs.ts';

/** How long what was read of the repository is shown. */
const READ_MS_LOCAL = 2_000;
const READ_MS_REMOTE = 15_000;
/** The newest versions and history entries are shown. */
const VERSIONS_MAX = 50;
const ENTRIES_MAX = 50;

interface RepositoryView {
  readonly versions: readonly object[];
  readonly channels: readonly object[];
  readonly quarantined: readonly string[];
  /** The version that is staged. */
  readonly candidate: string | undefined;
  readonly logs: ReadonlyMap<string, readonly object[]>;
  /** Number of the newest gate report of each version that has one. */
  readonly gateReports: ReadonlyMap<string, number>;
}

const EMPTY_VIEW: RepositoryView = {
  versions: [],
  channels: [],
  quarantined: [],
  candidate: undefined,
  logs: new Map(),
  gateReports: new Map(),
};

export interface ControllerSourceOptions {
  readonly bundles: readonly BundleController[];
  readonly configs: readonly BundleRolloutConfig[];
  readonly watch: FleetWatch;
  readonly gates: GateRuns;
  /** The checks of `cube-agent doctor` for a bundle. */
  readonly diagnose: (bundle: BundleController) => Promise<readonly Finding[]>;
  readonly clock?: Clock;
}

export class ControllerConsoleSource implements ConsoleSource {
  readonly role = 'controller';
  readonly views: readonly ConsoleView[] = ['fleet', 'versions', 'rollout', 'problems'];
  readonly series: readonly string[] = [];
  readonly idleValues: readonly number[] = [];
  readonly #options: ControllerSourceOptions;
  readonly #clock: Clock;
  /** Manifests never change. */
  readonly #manifests = new Map<string, Manifest>();
  readonly #views = new Map<string, { readonly view: RepositoryView; readonly untilMs: number }>();
  readonly #errors = new Map<string, string>();
  readonly #diagnoses = new Map<string, Diagnoses>();
  /** Reports are never removed: the search for the newest starts at the last one found. */
  readonly #gateReports = new Map<string, number>();

  constructor(options: ControllerSourceOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
  }

  /** Addresses of the serving processes that the page can show. */
  get servings(): readonly string[] {
    return [...new Set(this.#options.configs.flatMap(({ serving }) => serving))];
  }

  sample(): number[] {
    return [];
  }

  /** Reads the repository again with the next state: something was changed. */
  refresh(): void {
    this.#views.clear();
  }

  async getState(): Promise<object> {
    const { bundles, watch } = this.#options;
    const [servers, states] = await Promise.all([
      watch.read(),
      Promise.all(bundles.map((bundle) => this.#describeBundle(bundle))),
    ]);
    return {
      servers,
      bundles: states,
      servings: this.servings,
      findings: bundles.flatMap((bundle) => this.#findProblems(bundle)),
      warnings: listRecentWarnings(),
    };
  }

  async #describeBundle(controller: BundleController): Promise<object> {
    const { bundle } = controller.options;
    const config = this.#options.configs.find(({ name }) => name === bundle);
    const { logs, gateReports, ...view } = await this.#readRepository(controller);
    const versions = [...new Set([...logs.keys(), ...controller.progress.keys()])];
    return {
      bundle,
      ...view,
      gateReports: Object.fromEntries(gateReports),
      gates: this.#options.gates.list(bundle),
      rollouts: versions.map((version) => {
        const progress = controller.progress.get(version);
        const status = progress && toRolloutStatus(version, progress);
        return {
          version,
          state: status?.state ?? '',
          step: status?.step ?? '',
          why: status?.why ?? '',
          isBlocked: progress?.step.kind === 'wait' && progress.step.isBlocked === true,
          replicas: status?.shards.flat() ?? [],
          readings: controller.options.fleet.readings?.get(version) ?? null,
          entries: logs.get(version) ?? [],
        };
      }),
      policy: config && {
        channels: config.policy.channels,
        gate: config.policy.gate,
        watchMs: config.policy.watchMs,
        limits: config.health,
      },
    };
  }

  /** Keeps what is known when the repository cannot be read. */
  async #readRepository(controller: BundleController): Promise<RepositoryView> {
    const { bundle, repository } = controller.options;
    const known = this.#views.get(bundle);
    const nowMs = this.#clock.nowMs();
    if (known !== undefined && nowMs < known.untilMs) return known.view;
    const ageMs = repository.isLocal ? READ_MS_LOCAL : READ_MS_REMOTE;
    let view = known?.view ?? EMPTY_VIEW;
    try {
      view = await this.#readBundle(controller);
      this.#errors.delete(bundle);
    } catch (error) {
      this.#errors.set(bundle, CubeError.from(error).message);
    }
    this.#views.set(bundle, { view, untilMs: nowMs + ageMs });
    return view;
  }

  async #readBundle({ options }: BundleController): Promise<RepositoryView> {
    const { bundle, repository, policy } = options;
    const names = (await repository.listVersions(bundle)).slice(-VERSIONS_MAX);
    const versions = await Promise.all(
      names.map((version) => this.#describeVersion(options, version)),
    );
    const channels = await Promise.all(
      policy.channels.map(async ({ channel }) => {
        const state = await repository.readChannel(bundle, channel);
        const { previous, quarantined } = state;
        const history = state.history.slice(-ENTRIES_MAX);
        return { channel, previous: previous?.version, history, quarantined };
      }),
    );
    const rollouts = (await repository.listRollouts(bundle)).slice(-VERSIONS_MAX);
    const logs = await Promise.all(
      rollouts.map(async (version) => {
        const log = repository.rolloutLog(bundle, version);
        const id = `${bundle}/${version}`;
        const report = await log.findNewestGateReport(this.#gateReports.get(id));
        this.#gateReports.set(id, report);
        const entries = (await log.readHistory()).map(({ state, at, holder, reason }) => {
          return { state, at, holder, reason };
        });
        return { version, entries, report };
      }),
    );
    const { pointer } = await repository.readChannel(bundle, CANDIDATE_CHANNEL);
    return {
      versions: versions.reverse(),
      candidate: pointer?.version,
      channels: channels.map(({ quarantined: _, ...channel }) => channel),
      quarantined: [...new Set(channels.flatMap(({ quarantined }) => [...quarantined]))],
      // A version that was only gated has no rollout.
      logs: new Map(
        logs.flatMap(({ version, entries }) => (entries.length > 0 ? [[version, entries]] : [])),
      ),
      gateReports: new Map(
        logs.flatMap(({ version, report }) => (report > 0 ? [[version, report]] : [])),
      ),
    };
  }

  async #describeVersion(
    { bundle, repository }: BundleController['options'],
    version: string,
  ): Promise<object> {
    const key = `${bundle}/${version}`;
    try {
      const manifest = this.#manifests.get(key) ?? (await repository.readManifest(bundle, version));
      this.#manifests.set(key, manifest);
      const tables = manifest.tables.map(({ name, dim, dtype, rows, shardNum, shards }) => {
        const bytes = shards.flat().reduce((sum, layer) => sum + layer.bytes, 0);
        return { name, dim, dtype, rows, shardNum, bytes };
      });
      return {
        version,
        tables,
        rows: tables.reduce((sum, { rows }) => sum + rows, 0),
        bytes: tables.reduce((sum, { bytes }) => sum + bytes, 0),
      };
    } catch (error) {
      const { message } = CubeError.from(error);
      return { version, tables: [], rows: 0, bytes: 0, error: message };
    }
  }

  #listFindings(controller: BundleController): readonly Finding[] {
    const { bundle } = controller.options;
    let diagnoses = this.#diagnoses.get(bundle);
    if (diagnoses === undefined) {
      diagnoses = new Diagnoses(() => this.#options.diagnose(controller), this.#clock);
      this.#diagnoses.set(bundle, diagnoses);
    }
    return diagnoses.list();
  }

  #findProblems(controller: BundleController): object[] {
    const { options, problems } = controller;
    const { bundle } = options;
    const error = this.#errors.get(bundle);
    return [
      ...(error === undefined ? [] : [{ severity: 'error', where: bundle, what: error }]),
      ...problems.map(({ version, message }) => ({
        severity: 'error',
        where: version === undefined ? bundle : `${bundle} ${version}, rollout`,
        what: message,
      })),
      ...this.#listFindings(controller).map(({ severity, where, what, todo }) => {
        return { severity, where, what, todo };
      }),
    ];
  }
}
