/** The running experiments of a serving process: variants, their shares and what answers them. */
import type { JSX } from 'preact';
import { formatPercent, formatTime } from '../format.ts';
import type { Experiment, ExperimentOrigin, Variant } from '../types.ts';

interface ExperimentsProps {
  readonly experiments: readonly Experiment[];
  readonly origins: readonly ExperimentOrigin[];
}

export function Experiments({ experiments, origins }: ExperimentsProps): JSX.Element | null {
  if (experiments.length === 0) return null;
  return (
    <section class="card" data-card="experiments">
      <h3>Experiments</h3>
      <table>
        <thead>
          <tr>
            <th>Experiment</th>
            <th>Variant</th>
            <th class="number">Share</th>
            <th>Answers</th>
          </tr>
        </thead>
        <tbody>
          {experiments.flatMap(({ name, model, variants }) =>
            variants.map((variant, i) => (
              <tr key={`${name} ${variant.name}`}>
                <td>{i === 0 && `${name} (${model})`}</td>
                <td>{variant.name}</td>
                <td class="number">{formatPercent(toPercent(variant, variants))}</td>
                <td>
                  {describeTarget(variant)}
                  {!variant.loaded && <span class="badge warning">not loaded</span>}
                </td>
              </tr>
            )),
          )}
        </tbody>
      </table>
      {origins.map(({ model, seq, at, by, reason }) => (
        <p class="muted" key={model}>
          {model}: entry {seq}, {formatTime(at)}, by {by}: {reason}
        </p>
      ))}
    </section>
  );
}

function toPercent({ weight }: Variant, variants: readonly Variant[]): number {
  return (100 * weight) / variants.reduce((sum, variant) => sum + variant.weight, 0);
}

function describeTarget({ model, channel, version }: Variant): string {
  const parts = [
    model === undefined ? '' : `model ${model}`,
    channel === undefined ? '' : `channel ${channel}`,
    version === undefined ? '' : `version ${version}`,
  ].filter((part) => part !== '');
  return parts.join(', ') || 'as without the experiment';
}
