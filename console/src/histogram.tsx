/** Distributions as bars, drawn over one another: the first as area, the second as outline. */
import type { JSX } from 'preact';

export interface HistogramData {
  readonly low: number;
  readonly high: number;
  /** A column of counts for each distribution. */
  readonly counts: readonly (readonly number[])[];
}

const HEIGHT = 100;

export function Histogram({
  data,
  label,
  names,
  format,
}: {
  data: HistogramData;
  label: string;
  /** One for each distribution. */
  names: readonly string[];
  format: (value: number) => string;
}): JSX.Element {
  const { low, high, counts } = data;
  const [bars = [], outline] = counts;
  const largest = Math.max(1, ...counts.flat());
  const scale = (count: number): number => (HEIGHT * count) / largest;
  return (
    <figure class="histogram">
      <figcaption>
        <span class="name">{label}</span>
        {names.length > 1 &&
          names.map((name, i) => (
            <span key={name} class="muted">
              <i class={`dot ${i === 0 ? 'cblue' : 'corange'}`} />
              {name}
            </span>
          ))}
      </figcaption>
      <svg viewBox={`0 0 ${bars.length} ${HEIGHT}`} preserveAspectRatio="none" role="img">
        <title>{label}</title>
        {bars.map((count, i) => (
          <rect
            key={String(i)}
            class="histogram-bar"
            x={i + 0.06}
            y={HEIGHT - scale(count)}
            width={0.88}
            height={scale(count)}
          />
        ))}
        {outline !== undefined && (
          <path
            class="histogram-line"
            d={`M0 ${HEIGHT}${outline
              .map((count, i) => `V${HEIGHT - scale(count)}H${i + 1}`)
              .join('')}V${HEIGHT}`}
          />
        )}
      </svg>
      <div class="histogram-axis muted">
        <span>{format(low)}</span>
        <span>{format((low + high) / 2)}</span>
        <span>{format(high)}</span>
      </div>
    </figure>
  );
}
