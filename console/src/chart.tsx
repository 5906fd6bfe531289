/** A chart of samples over time with a legend of current values; all charts share the cursor. */
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import type { Samples } from './connection.ts';
import { useTheme } from './theme.ts';

const HEIGHT = 132;
const CURSOR = uPlot.sync('live');

export interface Line {
  readonly label: string;
  /** Name of the sampled series. */
  readonly series: string;
  /** Custom property of the color, such as --blue. */
  readonly color: string;
}

interface ChartProps {
  readonly title: string;
  readonly lines: readonly Line[];
  readonly samples: Samples;
  readonly tick: number;
  readonly windowSeconds: number;
  readonly format: (value: number | null) => string;
  /** The scale reaches at least this far. */
  readonly atLeast?: number;
}

export function Chart({ title, lines, samples, tick, windowSeconds, format, atLeast }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const [hovered, setHovered] = useState<number | null>(null);
  const theme = useTheme();
  useEffect(() => {
    const parent = box.current;
    if (parent === null) return undefined;
    const options = createOptions(parent.clientWidth, lines, format, atLeast ?? 0, setHovered);
    const created = new uPlot(options, [[0], ...lines.map(() => [null])], parent);
    plot.current = created;
    const resized = new ResizeObserver(() =>
      created.setSize({ width: parent.clientWidth, height: HEIGHT }),
    );
    resized.observe(parent);
    return () => {
      resized.disconnect();
      created.destroy();
    };
  }, [theme, samples]);
  useLayoutEffect(() => {
    const data = [samples.times, ...lines.map(({ series }) => samples.column(series))];
    plot.current?.setData(data as uPlot.AlignedData, false);
    const end = samples.times.at(-1) ?? Date.now() / 1_000;
    plot.current?.setScale('x', { min: end - windowSeconds, max: end });
  }, [tick, windowSeconds, theme, samples]);
  const at = hovered ?? samples.times.length - 1;
  return (
    <section class="card chart">
      <h3>{title}</h3>
      <ul class="legend">
        {lines.map(({ label, series, color }) => (
          <li key={series}>
            <i class={`dot c${color.slice(2)}`} />
            {label} <b>{format(samples.column(series)[at] ?? null)}</b>
          </li>
        ))}
      </ul>
      <div ref={box} class="plot" />
    </section>
  );
}

function createOptions(
  width: number,
  lines: readonly Line[],
  format: (value: number | null) => string,
  atLeast: number,
  onHover: (index: number | null) => void,
): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const color = (name: string): string => style.getPropertyValue(name).trim();
  const font = '11px system-ui, sans-serif';
  const axis = { stroke: color('--muted'), font, grid: { stroke: color('--grid'), width: 1 } };
  return {
    width,
    height: HEIGHT,
    padding: [8, 20, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: CURSOR.key },
      drag: { x: false, y: false },
      points: { size: 5 },
      y: false,
    },
    hooks: {
      setCursor: [({ cursor }) => onHover(cursor.left === -10 ? null : (cursor.idx ?? null))],
    },
    scales: {
      x: { time: true, auto: false },
      y: { range: (_plot, _min, max) => [0, Math.max(atLeast, (max ?? 0) * 1.1, 1e-9)] },
    },
    axes: [
      { ...axis, ticks: { show: false }, space: 70, size: 22, values: formatTimes },
      {
        ...axis,
        ticks: { show: false },
        space: 34,
        size: 56,
        values: (_plot, ticks) => ticks.map(format),
      },
    ],
    series: [
      {},
      ...lines.map(({ color: name }, i) => ({
        stroke: color(name),
        width: 1.5,
        points: { show: true, size: 4, fill: color(name), filter: findIsolatedPoints },
        ...(i === 0 && { fill: `color-mix(in srgb, ${color(name)} 12%, transparent)` }),
      })),
    ],
  };
}

/** Points without neighbors: a line would not show them. */
function findIsolatedPoints(plot: uPlot, series: number): number[] {
  const values = plot.data[series] ?? [];
  const isValue = (i: number): boolean => values[i] !== null && values[i] !== undefined;
  return [...values.keys()].filter((i) => isValue(i) && !isValue(i - 1) && !isValue(i + 1));
}

function formatTimes(_plot: uPlot, times: number[]): string[] {
  return times.map((seconds) => {
    const time = new Date(seconds * 1_000);
    const two = (value: number): string => String(value).padStart(2, '0');
    const minutes = `${two(time.getHours())}:${two(time.getMinutes())}`;
    return time.getSeconds() === 0 ? minutes : `${minutes}:${two(time.getSeconds())}`;
  });
}
