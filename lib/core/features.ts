/** Rows of requests: what they are (feature-rows.ts), and how text (tsv-rows.ts, tsv-keys.ts) and JSON (json-rows.ts) become them. */
export * from './feature-rows.ts';
export { parseJsonRows } from './json-rows.ts';
export { parseTsvKeys } from './tsv-keys.ts';
export { parseTsvRows } from './tsv-rows.ts';
