/**
 * The distributions of the columns: 13 integers and 26 categories shaped like Criteo's (long tails,
 * many zeros, fields that are missing together, cardinalities from 3 to 10 million). The numbers
 * are rounded and our own; no data set is needed.
 */

/** Fields of one group are present or missing in the same rows. */
export type MissingGroup = 'visit' | 'session' | 'history' | 'page' | 'user' | 'own';

export interface DenseField {
  readonly name: string;
  readonly group: MissingGroup;
  /** Share of rows without a value. */
  readonly missing: number;
  /** Share of the present values that are 0, or 0 and negative with `hasNegatives`. */
  readonly zero: number;
  /** The other values are floor(exp(location + spread · normal)): a long tail. */
  readonly location: number;
  readonly spread: number;
  /** Half of the `zero` share is −1 to −3, as in Criteo's I2. */
  readonly hasNegatives?: boolean;
}

export interface SlotField {
  readonly name: string;
  readonly group: MissingGroup;
  readonly missing: number;
  readonly categories: number;
  /** Power law: the category of rank r has a share about (r + offset)^−exponent. */
  readonly exponent: number;
  readonly offset: number;
  /** Relative influence of this field on clicks. */
  readonly weight: number;
}

const dense = (
  name: string,
  group: MissingGroup,
  missing: number,
  zero: number,
  location: number,
  spread: number,
): DenseField => ({ name, group, missing, zero, location, spread });

export const DENSE_FIELDS: readonly DenseField[] = [
  dense('I1', 'visit', 0.45, 0.48, 0.9, 1.1),
  { ...dense('I2', 'own', 0, 0.28, 3, 2), hasNegatives: true },
  dense('I3', 'history', 0.2, 0.01, 2.2, 1.4),
  dense('I4', 'history', 0.2, 0.07, 1.8, 0.9),
  dense('I5', 'session', 0.05, 0.02, 7.8, 1.9),
  dense('I6', 'own', 0.25, 0.06, 3.9, 1.5),
  dense('I7', 'session', 0.05, 0.25, 1.9, 1.2),
  dense('I8', 'own', 0.001, 0.12, 2.3, 0.9),
  dense('I9', 'session', 0.05, 0.03, 3.8, 1.5),
  dense('I10', 'visit', 0.45, 0.5, 0.3, 0.4),
  dense('I11', 'session', 0.05, 0.27, 0.9, 0.8),
  dense('I12', 'own', 0.77, 0.74, 0.8, 0.8),
  dense('I13', 'history', 0.2, 0.06, 2, 1),
];

const slot = (
  name: string,
  group: MissingGroup,
  missing: number,
  categories: number,
  exponent: number,
  offset: number,
  weight: number,
): SlotField => ({ name, group, missing, categories, exponent, offset, weight });

export const SLOT_FIELDS: readonly SlotField[] = [
  slot('C1', 'own', 0, 1_460, 2, 0, 0.5),
  slot('C2', 'own', 0, 580, 1.85, 8, 1),
  slot('C3', 'page', 0.03, 10_100_000, 1.06, 0, 0.8),
  slot('C4', 'page', 0.03, 2_200_000, 1.1, 0, 0.8),
  slot('C5', 'own', 0, 305, 2.6, 0, 0.4),
  slot('C6', 'own', 0.13, 20, 2.6, 1, 0.7),
  slot('C7', 'own', 0, 12_500, 1.2, 32, 0.7),
  slot('C8', 'own', 0, 630, 2.3, 0, 0.4),
  slot('C9', 'own', 0, 3, 3.2, 0, 0.4),
  slot('C10', 'own', 0, 93_000, 1.15, 2, 0.7),
  slot('C11', 'own', 0, 5_680, 1.2, 16, 0.8),
  slot('C12', 'page', 0.03, 8_350_000, 1.06, 0, 0.6),
  slot('C13', 'own', 0, 3_190, 1.2, 16, 0.8),
  slot('C14', 'own', 0, 27, 2.2, 1, 1),
  slot('C15', 'own', 0, 15_000, 1.45, 32, 0.8),
  slot('C16', 'page', 0.03, 5_460_000, 1.1, 1, 0.6),
  slot('C17', 'own', 0, 10, 1.4, 0, 1),
  slot('C18', 'own', 0, 5_650, 1.6, 16, 1),
  slot('C19', 'user', 0.45, 2_170, 1.5, 0, 0.6),
  slot('C20', 'user', 0.45, 4, 2.8, 16, 0.8),
  slot('C21', 'page', 0.03, 7_050_000, 1.06, 0, 0.6),
  slot('C22', 'own', 0.78, 18, 2.5, 1, 0.6),
  slot('C23', 'own', 0, 15, 2.1, 1, 0.8),
  slot('C24', 'page', 0.03, 286_000, 1.25, 1, 0.7),
  slot('C25', 'user', 0.45, 105, 2.2, 1, 0.7),
  slot('C26', 'user', 0.45, 143_000, 1.1, 0.5, 0.6),
];

export interface Interaction {
  readonly slots: readonly [number, number];
  readonly weight: number;
}

const slotIndex = (name: string): number => SLOT_FIELDS.findIndex((field) => field.name === name);

/** Pairs of fields with an effect of their combination, which a linear model cannot learn. */
export const INTERACTIONS: readonly Interaction[] = [
  { slots: [slotIndex('C6'), slotIndex('C14')], weight: 0.5 },
  { slots: [slotIndex('C17'), slotIndex('C23')], weight: 0.5 },
  { slots: [slotIndex('C2'), slotIndex('C20')], weight: 0.4 },
  { slots: [slotIndex('C8'), slotIndex('C25')], weight: 0.4 },
];

export const MISSING_GROUPS: readonly MissingGroup[] = [
  'visit',
  'session',
  'history',
  'page',
  'user',
];
