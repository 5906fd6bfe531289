/**
 * Generated film reviews, their vocabulary and their labels. Words are lower case; a text is split
 * at everything that is not a letter.
 */
import { Random } from './random.ts';

const SUBJECTS = 'film story acting music plot ending cast dialogue pace camera'.split(' ');
const VERBS = 'was is seemed felt'.split(' ');
const ADVERBS = 'very really quite so rather'.split(' ');
const NEGATIONS = 'not never hardly'.split(' ');
const POSITIVE = 'good great lovely moving funny clever fresh warm brilliant gripping'.split(' ');
const NEGATIVE = 'bad dull weak boring silly slow stale cold awful confusing'.split(' ');
const OPENINGS = ['', '', 'i think', 'to me', 'last night', 'in my view', 'honestly'];
const CLOSINGS = ['', '', 'in the end', 'for two hours', 'as my friends said'];
const JOINTS = 'the and'.split(' ');

/** Id of the padding after short texts. */
export const PADDING_ID = 0;
const UNKNOWN_ID = 1;
const SPECIAL_WORDS = ['<padding>', '<unknown>'];

/** All words; the position of a word is its id. */
export const VOCABULARY: readonly string[] = [
  ...SPECIAL_WORDS,
  ...new Set(
    [SUBJECTS, VERBS, ADVERBS, NEGATIONS, POSITIVE, NEGATIVE, JOINTS, OPENINGS, CLOSINGS]
      .flat()
      .flatMap((words) => words.split(' '))
      .filter((word) => word !== ''),
  ),
];

const ids = new Map(VOCABULARY.map((word, id) => [word, id]));

/** The id of each word; 1 for a word that is not in the vocabulary. */
export function tokenize(text: string): number[] {
  const words = text.toLowerCase().match(/[a-z]+/g) ?? [];
  return words.map((word) => ids.get(word) ?? UNKNOWN_ID);
}

export interface Review {
  readonly text: string;
  /** 0 negative, 1 positive. */
  readonly label: number;
}

const NEGATED_SHARE = 0.2;

/** The same reviews for the same seed. */
export function generateReviews(seed: number, count: number): Review[] {
  const random = new Random(seed);
  return Array.from({ length: count }, () => {
    const label = random.nextBelow(2);
    const clauses = Array.from({ length: 1 + random.nextBelow(3) }, () =>
      makeClause(random, label),
    );
    const parts = [random.pick(OPENINGS), clauses.join(' and '), random.pick(CLOSINGS)];
    return { text: parts.filter((part) => part !== '').join(' '), label };
  });
}

function makeClause(random: Random, label: number): string {
  const isNegated = random.nextUnit() < NEGATED_SHARE;
  const isPositive = (label === 1) !== isNegated;
  const words = ['the', random.pick(SUBJECTS), random.pick(VERBS)];
  if (isNegated) words.push(random.pick(NEGATIONS));
  if (random.nextBelow(2) === 0) words.push(random.pick(ADVERBS));
  words.push(random.pick(isPositive ? POSITIVE : NEGATIVE));
  return words.join(' ');
}
