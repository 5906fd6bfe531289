/** The frame of the page: header, navigation between views, and the connections to processes. */
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { type Connection, useConnection } from './connection.ts';
import { TokenDialog } from './dialog.tsx';
import { formatDuration } from './format.ts';
import { toggleTheme, useTheme } from './theme.ts';
import type { View } from './types.ts';
import { Fleet } from './views/fleet.tsx';
import { Live } from './views/live.tsx';
import { PipelineView } from './views/pipeline.tsx';
import { Predict } from './views/predict.tsx';
import { countProblems, Problems } from './views/problems.tsx';
import { RolloutView } from './views/rollout.tsx';
import { Tables } from './views/tables.tsx';
import { Versions } from './views/versions.tsx';

const TITLES: Readonly<Record<View, string>> = {
  fleet: 'Fleet',
  live: 'Live',
  predict: 'Predict',
  pipeline: 'Pipeline',
  versions: 'Versions',
  rollout: 'Rollout',
  tables: 'Tables',
  problems: 'Problems',
};
const ORDER = Object.keys(TITLES) as View[];
/** Views of a serving process. A controller forwards them to one of its serving processes. */
const OF_SERVING: readonly View[] = ['live', 'predict', 'tables'];

export function App(): JSX.Element {
  const own = useConnection('');
  const [view, setView] = useView(own);
  const [serving, setServing] = useState(0);
  const servings = own.state.servings ?? [];
  const isForwarded = own.snapshot?.role !== 'serving' && OF_SERVING.includes(view ?? 'fleet');
  const forwarded = useConnection(
    isForwarded && servings.length > 0 ? `/v1/console/servings/${serving}` : undefined,
    `http://${servings[serving]}`,
  );
  const shown = isForwarded ? forwarded : own;
  const views = listViews(own);
  const nav = useRef<HTMLElement>(null);
  const role = own.snapshot?.role;
  useEffect(() => {
    if (view === undefined) return;
    document.title = `${TITLES[view]} · ${role} ${location.host} · Hypercube`;
    // In a narrow window, the links are wider than the page.
    nav.current?.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest' });
  }, [view, role]);
  return (
    <>
      <Header own={own} />
      <nav aria-label="Views" ref={nav}>
        {views.map((name) => (
          <a key={name} href={`#${name}`} aria-current={name === view ? 'page' : undefined}>
            {TITLES[name]}
            {name === 'problems' && <ProblemCount count={countProblems(own.state)} />}
          </a>
        ))}
        {isForwarded && servings.length > 1 && (
          <select
            aria-label="Serving process"
            value={serving}
            onChange={({ currentTarget }) => setServing(Number(currentTarget.value))}
          >
            {servings.map((address, i) => (
              <option key={address} value={i}>
                serving {address}
              </option>
            ))}
          </select>
        )}
      </nav>
      <main id="main">
        <Banner connection={own} />
        {isForwarded && own.error === undefined && <Banner connection={forwarded} />}
        {view !== undefined && shown.snapshot !== undefined && (
          <ViewBody view={view} connection={shown} onNavigate={setView} />
        )}
      </main>
    </>
  );
}

function listViews({ snapshot, state }: Connection): View[] {
  const known = new Set(snapshot?.views ?? []);
  if ((state.servings ?? []).length > 0) for (const view of OF_SERVING) known.add(view);
  return ORDER.filter((view) => known.has(view));
}

/** The view in the address, else the first. */
function useView(own: Connection): [View | undefined, (view: View) => void] {
  const read = (): string => location.hash.slice(1);
  const [name, setName] = useState(read());
  useEffect(() => {
    const listener = (): void => setName(read());
    addEventListener('hashchange', listener);
    return () => removeEventListener('hashchange', listener);
  }, []);
  const views = listViews(own);
  const view = views.find((candidate) => candidate === name) ?? views[0];
  return [
    view,
    (next) => {
      location.hash = next;
    },
  ];
}

function ViewBody({
  view,
  connection,
  onNavigate,
}: {
  view: View;
  connection: Connection;
  onNavigate: (view: View) => void;
}): JSX.Element {
  switch (view) {
    case 'fleet':
      return <Fleet connection={connection} />;
    case 'live':
      return <Live connection={connection} />;
    case 'predict':
      return <Predict connection={connection} />;
    case 'pipeline':
      return <PipelineView connection={connection} />;
    case 'versions':
      return <Versions connection={connection} onNavigate={onNavigate} />;
    case 'rollout':
      return <RolloutView connection={connection} />;
    case 'tables':
      return <Tables connection={connection} />;
    case 'problems':
      return <Problems connection={connection} />;
  }
}

function Header({ own }: { own: Connection }): JSX.Element {
  const theme = useTheme();
  const { snapshot, error } = own;
  const status = error === undefined ? (snapshot === undefined ? 'connecting' : 'live') : 'offline';
  return (
    <header>
      <a class="skip" href="#main">
        Skip to content
      </a>
      <h1>Hypercube</h1>
      {snapshot !== undefined && (
        <span class="process">
          {snapshot.role} <span class="muted">· {location.host}</span>
          <span class="muted wide">
            {' '}
            · {snapshot.product} · pid {snapshot.pid} · up{' '}
            {formatDuration(Date.now() - snapshot.startedMs)}
          </span>
        </span>
      )}
      <span class={`badge ${status}`} role="status">
        {status}
      </span>
      <button type="button" class="quiet" onClick={toggleTheme} aria-label="Switch color theme">
        {theme === 'dark' ? '☀' : '☾'}
      </button>
    </header>
  );
}

function ProblemCount({ count }: { count: number }): JSX.Element | null {
  return count === 0 ? null : <span class="count">{count}</span>;
}

function Banner({ connection }: { connection: Connection }): JSX.Element | null {
  const { error, snapshot, reconnect } = connection;
  if (error === undefined) {
    return snapshot === undefined ? <p class="empty">Connecting …</p> : null;
  }
  if (error.status === 403 || error.status === 401) {
    return (
      <TokenDialog message={error.message} onDone={reconnect} title="This process needs a token" />
    );
  }
  return (
    <p class="banner" role="alert">
      No connection: {error.message}. Trying again every second
      {snapshot === undefined ? '.' : '; what is shown is older.'}
    </p>
  );
}
