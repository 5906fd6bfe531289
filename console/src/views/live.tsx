/** Rates, latencies and resources of a serving process over the last fifteen minutes. */
import type { ComponentChildren, JSX } from 'preact';
import { useState } from 'preact/hooks';
import { Chart, type Line } from '../chart.tsx';
import type { Connection, Samples } from '../connection.ts';
import {
  formatBytes,
  formatCount,
  formatDuration,
  formatMs,
  formatPercent,
  formatPlain,
} from '../format.ts';
import type { Model, Store } from '../types.ts';
import { Experiments } from './experiments.tsx';
import { SlotMissesCard } from './slot-misses.tsx';

const WINDOWS = [
  [60, '1 min'],
  [300, '5 min'],
  [900, '15 min'],
] as const;

type Format = (value: number | null) => string;

interface ChartSpec {
  readonly title: string;
  readonly format: Format;
  readonly lines: readonly Line[];
  readonly atLeast?: number;
}

const line = (label: string, series: string, color: string): Line => ({ label, series, color });

const CHARTS: readonly ChartSpec[] = [
  {
    title: 'Requests per second',
    format: formatCount,
    lines: [line('requests', 'requestRate', '--blue'), line('failed', 'failureRate', '--red')],
    atLeast: 1,
  },
  {
    title: 'Latency',
    format: formatMs,
    lines: [
      line('p50', 'p50Ms', '--blue'),
      line('p90', 'p90Ms', '--teal'),
      line('p99', 'p99Ms', '--orange'),
    ],
  },
  {
    title: 'Time by stage',
    format: formatMs,
    lines: [
      line('queue', 'queueMs', '--orange'),
      line('lookup', 'lookupMs', '--teal'),
      line('graph', 'inferMs', '--blue'),
    ],
  },
  {
    title: 'Rows per batch',
    format: formatCount,
    lines: [line('mean', 'batchRows', '--blue')],
    atLeast: 1,
  },
  {
    title: 'Waiting',
    format: formatCount,
    lines: [
      line('queued rows', 'queuedRows', '--orange'),
      line('requests in flight', 'inFlight', '--blue'),
    ],
    atLeast: 1,
  },
  {
    title: 'Lookups without a row',
    format: formatPercent,
    lines: [
      line('unseen', 'unseenPercent', '--teal'),
      line('unavailable', 'unavailablePercent', '--red'),
    ],
    atLeast: 1,
  },
  {
    title: 'Cache hits',
    format: formatPercent,
    lines: [
      line('requests', 'cacheHitPercent', '--blue'),
      line('hot rows', 'hotHitPercent', '--teal'),
    ],
    atLeast: 100,
  },
  {
    title: 'Mean score',
    format: formatPlain,
    lines: [line('probability', 'meanScore', '--purple')],
  },
  {
    title: 'CPU',
    format: formatPercent,
    lines: [
      line('process, of one core', 'cpuPercent', '--blue'),
      line('event loop busy', 'loopPercent', '--orange'),
    ],
    atLeast: 10,
  },
  {
    title: 'Event-loop delay, p99',
    format: formatMs,
    lines: [line('delay', 'loopDelayMs', '--orange')],
    atLeast: 1,
  },
  {
    title: 'Memory',
    format: formatBytes,
    lines: [line('process', 'rssBytes', '--blue'), line('heap', 'heapBytes', '--teal')],
  },
];

export function Live({ connection }: { connection: Connection }): JSX.Element | null {
  const { samples, state, tick } = connection;
  const [seconds, setSeconds] = useState<number>(300);
  if (samples === undefined) return null;
  const charts = CHARTS.filter((chart) => hasValues(chart, samples));
  return (
    <>
      <div class="toolbar">
        <h2>Live</h2>
        <fieldset class="segments" aria-label="Time range">
          {WINDOWS.map(([value, label]) => (
            <button
              key={value}
              type="button"
              aria-pressed={value === seconds}
              onClick={() => setSeconds(value)}
            >
              {label}
            </button>
          ))}
        </fieldset>
      </div>
      {state.notReady != null && (
        <p class="banner" role="alert">
          Not ready: {state.notReady}
        </p>
      )}
      <Tiles samples={samples} models={state.models ?? []} />
      <div class="charts">
        {charts.map((chart) => (
          <Chart
            key={chart.title}
            {...chart}
            samples={samples}
            tick={tick}
            windowSeconds={seconds}
          />
        ))}
      </div>
      <Experiments experiments={state.experiments ?? []} origins={state.experimentLogs ?? []} />
      <SlotMissesCard misses={state.misses ?? []} active={listActive(state.models ?? [])} />
      <ShardLatency stores={state.stores ?? []} />
    </>
  );
}

function listActive(models: readonly Model[]): ReadonlyMap<string, string> {
  return new Map(
    models.flatMap(({ model, active }) => (active === undefined ? [] : [[model, active]])),
  );
}

/** The charts of caches that do not exist stay away. */
function hasValues({ title, lines }: ChartSpec, samples: Samples): boolean {
  if (title !== 'Cache hits') return true;
  return lines.some(({ series }) => samples.column(series).some((value) => value !== null));
}

function Tiles({ samples, models }: { samples: Samples; models: readonly Model[] }): JSX.Element {
  const last = (name: string): number | null => samples.last(name);
  return (
    <div class="tiles">
      <Tile label="Requests per second" id="rate">
        {formatCount(last('requestRate'))}
      </Tile>
      <Tile label="Rows per second">{formatCount(last('rowRate'))}</Tile>
      <Tile label="Latency p50">{formatMs(last('p50Ms'))}</Tile>
      <Tile label="Latency p99">{formatMs(last('p99Ms'))}</Tile>
      <Tile label="Failed per second" isBad={(last('failureRate') ?? 0) > 0}>
        {formatCount(last('failureRate'))}
      </Tile>
      <Tile label="Memory">{formatBytes(last('rssBytes'))}</Tile>
      {models.map(({ model, active, activeSince }) => (
        <Tile key={model} label={`${model} version`} id="version">
          {active ?? 'none'}
          {activeSince !== undefined && (
            <small>for {formatDuration(Date.now() - Date.parse(activeSince))}</small>
          )}
        </Tile>
      ))}
    </div>
  );
}

function Tile({
  label,
  id,
  isBad = false,
  children,
}: {
  label: string;
  id?: string;
  isBad?: boolean;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <div class={`card tile${isBad ? ' bad' : ''}`} data-tile={id}>
      <span>{label}</span>
      <b>{children}</b>
    </div>
  );
}

function ShardLatency({ stores }: { stores: readonly Store[] }): JSX.Element | null {
  const servers = stores.flatMap((store) => store.servers);
  if (servers.length === 0) return null;
  const slowest = Math.max(...servers.map(({ latencyMs }) => latencyMs), 0.1);
  return (
    <section class="card">
      <h3>Shard servers, as this process sees them</h3>
      <div class="scroll">
        <table class="stacks">
          <thead>
            <tr>
              <th>Server</th>
              <th>State</th>
              <th class="grow">Latency, moving average</th>
              <th class="number">Requests</th>
              <th class="number">Failed</th>
            </tr>
          </thead>
          <tbody>
            {servers.map(({ endpoint, state, latencyMs, requests, failures }) => (
              <tr key={endpoint}>
                <td>{endpoint}</td>
                <td>
                  <span class={`badge ${state === 'failed' ? 'down' : 'ready'}`}>{state}</span>
                </td>
                <td class="full">
                  <Bar share={latencyMs / slowest} label={formatMs(latencyMs)} />
                </td>
                <td class="number" data-label="requests">
                  {formatCount(requests)}
                </td>
                <td class="number" data-label="failed">
                  {formatCount(failures)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** @param share 0..1 */
export function Bar({ share, label }: { share: number; label: string }): JSX.Element {
  return (
    <span class="bar">
      <svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
        <rect class="track" width="100" height="6" />
        <rect class="fill" width={Math.max(0, Math.min(1, share)) * 100} height="6" />
      </svg>
      <span>{label}</span>
    </span>
  );
}
