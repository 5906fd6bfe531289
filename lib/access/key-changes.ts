/** The changes of a key file, as functions from one list of keys to the next. */
import { CubeError } from '../core/errors.ts';
import type { ApiKey, KeyLimits, KeySecret } from './api-keys.ts';

export interface NewKey {
  readonly id: string;
  readonly secret: KeySecret;
  readonly scopes: readonly string[];
  readonly limits: KeyLimits;
  readonly createdAt: string;
  readonly expiresAt?: string | undefined;
}

/** @throws CubeError CONFLICT */
export function addKey(keys: readonly ApiKey[], added: NewKey): ApiKey[] {
  const { secret, expiresAt, ...others } = added;
  if (keys.some(({ id }) => id === added.id)) {
    throw new CubeError(
      'CONFLICT',
      `a key ${added.id} exists; ids are not used again, so that logs stay clear: choose another`,
    );
  }
  return [...keys, { ...others, ...secret, ...(expiresAt !== undefined && { expiresAt }) }];
}

/**
 * Gives a key a new secret. The old one stays valid until `oldExpiresAt`.
 * @throws CubeError NOT_FOUND; CONFLICT when the key is revoked
 */
export function rotateKey(
  keys: readonly ApiKey[],
  id: string,
  secret: KeySecret,
  oldExpiresAt: string,
): ApiKey[] {
  return changeKey(keys, id, (key) => {
    if (key.revokedAt !== undefined) {
      throw new CubeError('CONFLICT', `key ${id} is revoked; add a key with another id`);
    }
    const { sha256, prefix } = key;
    return { ...key, ...secret, previous: { sha256, prefix, expiresAt: oldExpiresAt } };
  });
}

/** Ends a key at once, with its previous secret. @throws CubeError NOT_FOUND */
export function revokeKey(keys: readonly ApiKey[], id: string, revokedAt: string): ApiKey[] {
  return changeKey(keys, id, (key) => ({ ...key, revokedAt: key.revokedAt ?? revokedAt }));
}

/** Sets when a key ends. @throws CubeError NOT_FOUND */
export function expireKey(keys: readonly ApiKey[], id: string, expiresAt: string): ApiKey[] {
  return changeKey(keys, id, (key) => ({ ...key, expiresAt }));
}

function changeKey(keys: readonly ApiKey[], id: string, change: (key: ApiKey) => ApiKey): ApiKey[] {
  if (!keys.some((key) => key.id === id)) {
    const known = keys.map((key) => key.id).slice(0, 20);
    throw new CubeError('NOT_FOUND', `no key ${id}; known: ${known.join(', ') || 'none'}`);
  }
  return keys.map((key) => (key.id === id ? change(key) : key));
}
