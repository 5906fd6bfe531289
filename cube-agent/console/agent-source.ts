/** What an agent shows in its console: the servers of its host, and problems. */
import type { ConsoleSource, ConsoleView } from '../../lib/console/console-feed.ts';
import { listRecentWarnings } from '../../lib/platform/recent-warnings.ts';
import type { Agent } from '../host/agent.ts';
import { buildHostStatus } from '../host/host-status.ts';
import type { FleetWatch } from './fleet-watch.ts';

export class AgentConsoleSource implements ConsoleSource {
  readonly role = 'agent';
  readonly views: readonly ConsoleView[] = ['fleet', 'problems'];
  readonly series: readonly string[] = [];
  readonly idleValues: readonly number[] = [];
  readonly #agent: Agent;
  readonly #watch: FleetWatch;

  constructor(agent: Agent, watch: FleetWatch) {
    this.#agent = agent;
    this.#watch = watch;
  }

  sample(): number[] {
    return [];
  }

  async getState(): Promise<object> {
    const { bundles, disk, problems } = buildHostStatus(this.#agent);
    const all = [...problems, ...bundles.flatMap((bundle) => bundle.problems)];
    return {
      servers: await this.#watch.read(),
      hosts: [
        {
          host: 'this host',
          answers: true,
          // Rounded: the free space of a disk always changes.
          freeBytes: disk.freeBytes && Math.round(disk.freeBytes / 2 ** 24) * 2 ** 24,
          transfers: bundles.flatMap(({ fetching }) =>
            fetching.map(({ version, bytes, arrivedBytes }) => ({ version, bytes, arrivedBytes })),
          ),
        },
      ],
      findings: all.map(({ what, message, attempts }) => ({
        severity: 'error',
        where: what,
        what: message,
        todo: `The agent tries again; attempts so far: ${attempts}.`,
      })),
      warnings: listRecentWarnings(),
    };
  }
}
