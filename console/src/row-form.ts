/** Between rows in JSON and the texts of form fields. */

export interface Features {
  readonly slots: readonly { readonly name: string; readonly pooling?: string }[];
  readonly dense?: { readonly features: readonly { readonly name: string }[] };
  /** Separates the values of a slot with pooling. */
  readonly separator?: string;
}

export type JsonRow = Readonly<Record<string, unknown>>;
export type Fields = Readonly<Record<string, string>>;

const SEPARATOR = ',';

/** @param row by position or by name */
export function toFields(features: Features, row: JsonRow | undefined): Fields {
  const fields: Record<string, string> = {};
  const put = (name: string, value: unknown): void => {
    if (value === null || value === undefined || value === '') return;
    fields[name] = Array.isArray(value) ? value.join(SEPARATOR) : String(value);
  };
  const dense = row?.['dense'];
  const categorical = row?.['categorical'];
  for (const [i, { name }] of (features.dense?.features ?? []).entries()) {
    put(name, Array.isArray(dense) ? dense[i] : row?.[name]);
  }
  for (const [i, { name }] of features.slots.entries()) {
    put(name, Array.isArray(categorical) ? categorical[i] : row?.[name]);
  }
  return fields;
}

/** @returns a row by name, without missing values; the process refuses what is not a number */
export function toRow(features: Features, fields: Fields): JsonRow {
  const row: Record<string, unknown> = {};
  for (const { name } of features.dense?.features ?? []) {
    const text = fields[name]?.trim() ?? '';
    // As a number in JSON, one that is not finite would become null: a missing value.
    if (text !== '') row[name] = Number.isFinite(Number(text)) ? Number(text) : text;
  }
  for (const { name, pooling } of features.slots) {
    const text = fields[name] ?? '';
    if (text === '') continue;
    row[name] = pooling === undefined ? text : text.split(SEPARATOR);
  }
  return row;
}
