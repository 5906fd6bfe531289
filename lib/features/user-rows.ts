/**
 * Users of a batch: rows that follow each other and have equal user-side keys are candidates of
 * one user, for whom the graph computes its user side once.
 */

/** The users of a batch of rows. */
export interface UserRows {
  readonly userCount: number;
  /** For each user, its first row. */
  readonly firstRows: Int32Array;
  /** For each row, its user. */
  readonly rowUsers: Int32Array;
}

/** The keys of a batch, as words (low, high). */
export interface KeyRows {
  readonly keys: Uint32Array;
  /** Where the keys of each (row, position) end; empty when each has one. */
  readonly ends: Uint32Array;
  /** Keys or bags in a row. */
  readonly keyNum: number;
}

/**
 * Writes the user of each row.
 * @param positions positions of the user-side keys in a row
 * @param rowUsers the first `rowCount` are written
 */
export function assignUsers(
  keyRows: KeyRows,
  positions: Int32Array,
  rowCount: number,
  rowUsers: Int32Array,
): void {
  let user = 0;
  for (let row = 0; row < rowCount; row++) {
    if (row > 0 && !hasSameUser(keyRows, positions, row)) user++;
    rowUsers[row] = user;
  }
}

/** Whether a row has the user-side keys of the row before it. */
function hasSameUser({ keys, ends, keyNum }: KeyRows, positions: Int32Array, row: number): boolean {
  const at = row * keyNum;
  for (let i = 0; i < positions.length; i++) {
    const here = at + positions[i]!;
    const before = here - keyNum;
    if (ends.length > 0) {
      if (!hasSameBag(keys, ends, before, here)) return false;
      continue;
    }
    if (keys[2 * here] !== keys[2 * before]) return false;
    if (keys[2 * here + 1] !== keys[2 * before + 1]) return false;
  }
  return true;
}

function hasSameBag(keys: Uint32Array, ends: Uint32Array, a: number, b: number): boolean {
  const startA = a === 0 ? 0 : ends[a - 1]!;
  const startB = ends[b - 1]!;
  const length = ends[a]! - startA;
  if (ends[b]! - startB !== length) return false;
  for (let word = 0; word < 2 * length; word++) {
    if (keys[2 * startA + word] !== keys[2 * startB + word]) return false;
  }
  return true;
}

/**
 * Finds the first row of each user.
 * @param firstRows room for one user in each row
 * @returns users that share the arrays
 */
export function listUsers(rowUsers: Int32Array, rowCount: number, firstRows: Int32Array): UserRows {
  let userCount = 0;
  for (let row = 0; row < rowCount; row++) {
    if (rowUsers[row] === userCount) firstRows[userCount++] = row;
  }
  return { userCount, firstRows, rowUsers };
}
