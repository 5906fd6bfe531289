/** Shards and replicas as a map, colored by state; a click shows details. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { Connection } from '../connection.ts';
import { formatBytes, formatCount, formatExact, formatTime } from '../format.ts';
import type { Host, Server } from '../types.ts';

type ServerState = 'ready' | 'loading' | 'stale' | 'down';

/** Stale: it answers, but has no version, another one than its siblings, or is draining. */
function findState(server: Server, expected: ReadonlyMap<string, string>): ServerState {
  if (!server.answers) return 'down';
  if (server.loading.length > 0) return 'loading';
  const isBehind = server.bundles.some(
    ({ bundle, active }) => active !== (expected.get(bundle) ?? active),
  );
  return !server.ready || server.draining || isBehind ? 'stale' : 'ready';
}

/** The version of each bundle that most servers have active. */
function findExpected(servers: readonly Server[]): Map<string, string> {
  const counts = new Map<string, Map<string, number>>();
  for (const { bundle, active } of servers.flatMap((server) => server.bundles)) {
    const versions = counts.get(bundle) ?? new Map<string, number>();
    versions.set(active, (versions.get(active) ?? 0) + 1);
    counts.set(bundle, versions);
  }
  return new Map(
    [...counts].map(([bundle, versions]) => {
      const [[most = ''] = []] = [...versions].sort(([, a], [, b]) => b - a);
      return [bundle, most];
    }),
  );
}

export function Fleet({ connection }: { connection: Connection }): JSX.Element {
  const { servers = [], hosts = [] } = connection.state;
  const [selected, setSelected] = useState<string>();
  const expected = findExpected(servers);
  const shards = new Map<string, Server[]>();
  for (const server of servers) {
    const name = server.shard === undefined ? '?' : `${server.shard} of ${server.shardNum}`;
    shards.set(name, [...(shards.get(name) ?? []), server]);
  }
  const names = [...shards.keys()].sort((a, b) => Number.parseInt(a, 10) - Number.parseInt(b, 10));
  const detail = servers.find(({ address }) => address === selected);
  const count = (state: ServerState): number =>
    servers.filter((server) => findState(server, expected) === state).length;
  return (
    <>
      <div class="toolbar">
        <h2>Fleet</h2>
        {(['ready', 'loading', 'stale', 'down'] as const).map((state) => (
          <span key={state} class={`badge ${count(state) === 0 ? '' : state}`} data-count={state}>
            {count(state)} {state}
          </span>
        ))}
      </div>
      {servers.length === 0 && <p class="empty">No servers are known yet.</p>}
      <div class="fleet">
        {names.map((name) => (
          <section key={name} class="card shard">
            <h3>Shard {name}</h3>
            {shards.get(name)?.map((server) => (
              <Replica
                key={server.address}
                server={server}
                state={findState(server, expected)}
                isSelected={server.address === selected}
                onSelect={() =>
                  setSelected(server.address === selected ? undefined : server.address)
                }
              />
            ))}
          </section>
        ))}
      </div>
      {detail !== undefined && <Detail server={detail} />}
      <Transfers hosts={hosts} />
    </>
  );
}

function Replica({
  server,
  state,
  isSelected,
  onSelect,
}: {
  server: Server;
  state: ServerState;
  isSelected: boolean;
  onSelect: () => void;
}): JSX.Element {
  const { address, bundles, loading, usedBytes, requestRate, answers } = server;
  const versions = bundles.map(({ active }) => active || 'none').join(', ');
  return (
    <button
      type="button"
      class={`replica ${state}`}
      aria-pressed={isSelected}
      onClick={onSelect}
      data-server={address}
      data-state={state}
    >
      <span class="top">
        <b>{address}</b>
        <span class={`badge ${state}`}>{server.draining ? 'draining' : state}</span>
      </span>
      <span class="facts">
        <span>
          version <b>{versions || 'none'}</b>
        </span>
        <span>{answers ? formatBytes(usedBytes) : '–'}</span>
        <span>{answers ? `${formatCount(requestRate)} req/s` : '–'}</span>
      </span>
      {answers &&
        loading.map(({ bundle, version, bytes = 0, loadedBytes = 0 }) => (
          <span key={`${bundle} ${version}`} class="progress" data-loading={version}>
            <progress
              max={Math.max(1, bytes)}
              value={loadedBytes}
              aria-label={`Loading ${version}`}
            />
            <span>
              {bytes === 0
                ? `loading ${version}`
                : `${version}: ${formatBytes(loadedBytes)} of ${formatBytes(bytes)}`}
            </span>
          </span>
        ))}
    </button>
  );
}

function Detail({ server }: { server: Server }): JSX.Element {
  const { address, pid, usedBytes, budgetBytes, bundles, failed, error, lastError } = server;
  return (
    <section class="card" aria-label={`Server ${address}`}>
      <h3>
        {address} <span class="muted">pid {pid ?? '–'}</span>
      </h3>
      {error !== undefined && <p class="error">{error}</p>}
      {failed.map(({ bundle, version, message }) => (
        <p class="error" key={`${bundle} ${version}`}>
          Loading {bundle} {version} failed: {message}
        </p>
      ))}
      <p class="muted">
        Memory: {formatBytes(usedBytes)} of {formatBytes(budgetBytes)}
      </p>
      {error === undefined && (
        <p class="muted" data-last-error>
          {lastError === undefined
            ? 'Last error: none since this page’s process was started'
            : `Last error, ${formatTime(lastError.at)}: ${lastError.message}`}
        </p>
      )}
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th>Bundle</th>
              <th>Version</th>
              <th>State</th>
              <th class="number">Rows</th>
              <th class="number">Size</th>
              <th class="number">Layers</th>
            </tr>
          </thead>
          <tbody>
            {bundles.flatMap(({ bundle, active, versions }) =>
              versions.map(({ version, rows, bytes, layers }) => (
                <tr key={`${bundle} ${version}`}>
                  <td>{bundle}</td>
                  <td>{version}</td>
                  <td>
                    <span class={`badge ${version === active ? 'active' : 'loaded'}`}>
                      {version === active ? 'active' : 'loaded'}
                    </span>
                  </td>
                  <td class="number">{formatExact(rows)}</td>
                  <td class="number">{formatBytes(bytes)}</td>
                  <td class="number" data-layers={version}>
                    {formatExact(layers)}
                  </td>
                </tr>
              )),
            )}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Transfers({ hosts }: { hosts: readonly Host[] }): JSX.Element | null {
  const transfers = hosts.flatMap((host) => host.transfers);
  if (transfers.length === 0) return null;
  const [bytes, arrived] = transfers.reduce(
    ([all, done], transfer) => [all + transfer.bytes, done + transfer.arrivedBytes] as const,
    [0, 0] as readonly [number, number],
  );
  return (
    <section class="card">
      <h3>Fetching from the repository</h3>
      <progress max={bytes} value={arrived} /> {formatBytes(arrived)} of {formatBytes(bytes)}
    </section>
  );
}
