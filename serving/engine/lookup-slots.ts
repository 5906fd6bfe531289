/** The positions of a row's keys that a graph looks up. */
import type { FeatureSpec } from '../../lib/core/slots.ts';
import type { GraphPlan } from '../../lib/features/graph-plan.ts';

export interface LookupSlot {
  /** In a row's keys. */
  readonly position: number;
  /** The slot's name. */
  readonly name: string;
  readonly tables: readonly string[];
}

/**
 * Ascending by position. Keys that are computed from several slots are named after the graph input
 * that takes them.
 */
export function listLookupSlots(
  { tables, embeddings }: GraphPlan,
  features: FeatureSpec,
): LookupSlot[] {
  const nameComputedKey = (position: number): string => {
    const embedding = embeddings.find(({ table, columns }) =>
      columns.some((column) => tables[table]?.columns[column] === position),
    );
    return `${embedding?.input} (computed)`;
  };
  const positions = new Set(tables.flatMap(({ columns }) => [...columns]));
  return [...positions]
    .sort((a, b) => a - b)
    .map((position) => ({
      position,
      name: features.slots[position]?.name ?? nameComputedKey(position),
      tables: tables.filter(({ columns }) => columns.includes(position)).map(({ name }) => name),
    }));
}
