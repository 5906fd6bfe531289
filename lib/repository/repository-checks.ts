/**
 * Findings about what a repository stores, shared by `cube-agent doctor` and `cube-check`. Each
 * tool reads the objects in its own way and passes what it read; checks, names and wording are the
 * same.
 */
import { CubeError, type ErrorCode } from '../core/errors.ts';
import type { ReportFinding, Severity } from '../core/findings.ts';
import type { ChannelState } from './channel-log.ts';
import { RESTORE_MISSING_ENTRY } from './entry-log.ts';
import { ASK_DOCTOR } from './signed-entry.ts';

/** What a tool tells people to do: command lines, or sentences where no command fits. */
export interface RepositoryRemedies {
  /** The repository did not answer. */
  readonly restoreAccess: string;
  readonly restoreEntry: string;
  activate(channel: string): string;
  rollBack(channel: string, version: string): string;
  publishAgain(version: string): string;
  sign(version: string): string;
  restoreManifest(version: string): string;
  restoreFile(version: string): string;
  restoreLayer(version: string): string;
}

/** An error without the advice to ask the tools that print it here. */
export function readFailure(thrown: unknown): { code: ErrorCode; message: string } {
  const { code, message } = CubeError.from(thrown);
  return { code, message: message.replace(ASK_DOCTOR, '') };
}

/** Missing entries of one log that are reported, at most. */
const MISSING_LISTED_MAX = 20;

export class RepositoryChecks {
  readonly #remedies: RepositoryRemedies;
  readonly #report: ReportFinding;

  constructor(remedies: RepositoryRemedies, report: ReportFinding) {
    this.#remedies = remedies;
    this.#report = report;
  }

  /** Reports a channel without a version, and one whose version is quarantined. */
  checkPointer(channel: string, state: ChannelState, where: string): void {
    const { pointer, quarantined } = state;
    if (pointer === undefined) {
      this.#report({
        severity: 'warning',
        check: 'channel-empty',
        where,
        what: `channel ${channel} does not point to a version yet`,
        todo: this.#remedies.activate(channel),
      });
    } else if (quarantined.has(pointer.version)) {
      this.#report({
        severity: 'error',
        check: 'pointer-quarantined',
        where,
        what: `channel ${channel} points to version ${pointer.version}, which is quarantined`,
        todo: this.#remedies.rollBack(channel, pointer.version),
        code: 'CORRUPT',
      });
    }
  }

  /** A channel's log, or an entry of it, that could not be read. */
  reportEntryError(where: string, thrown: unknown): void {
    const { code, message } = readFailure(thrown);
    const isDamaged = code === 'CORRUPT' || code === 'DENIED';
    this.#report({
      severity: 'error',
      check: isDamaged ? 'channel-damaged' : 'repository-unreachable',
      where,
      what: message,
      todo: isDamaged ? this.#remedies.restoreEntry : this.#remedies.restoreAccess,
      code,
    });
  }

  /**
   * Reports entries that are missing before the newest one.
   * @param seqs those of all entries, ascending
   * @param toPlace names the place of an entry
   */
  checkSequence(seqs: readonly number[], toPlace: (seq: number) => string): void {
    const known = new Set(seqs);
    let reported = 0;
    for (let seq = 1; seq < (seqs.at(-1) ?? 0) && reported < MISSING_LISTED_MAX; seq++) {
      if (known.has(seq)) continue;
      reported += 1;
      this.#report({
        severity: 'error',
        check: 'channel-damaged',
        where: toPlace(seq),
        what: `entry ${seq} is missing, although a newer one exists`,
        todo: RESTORE_MISSING_ENTRY,
        code: 'CORRUPT',
      });
    }
  }

  /** A manifest that is missing, unsigned or unreadable. */
  reportManifestError(version: string, where: string, thrown: unknown, severity: Severity): void {
    const { code, message } = readFailure(thrown);
    const [check, todo] = this.#explainManifestError(code, version);
    this.#report({ severity, check, where, what: message, todo, code });
  }

  /** A file of a version that is missing or has other content than its manifest says. */
  reportFileError(version: string, where: string, thrown: unknown): void {
    const { code, message } = readFailure(thrown);
    const todo = this.#orRestoreAccess(code, this.#remedies.restoreFile(version));
    this.#report({ severity: 'error', check: 'file-damaged', where, what: message, todo, code });
  }

  /** A layer that is missing or has other content than its manifest says. */
  reportLayerError(version: string, where: string, thrown: unknown): void {
    const { code, message } = readFailure(thrown);
    const isDenied = code === 'DENIED';
    const todo = isDenied
      ? 'give its key with --decrypt-key-file'
      : this.#orRestoreAccess(code, this.#remedies.restoreLayer(version));
    const check = isDenied ? 'encryption-key-missing' : 'layer-damaged';
    this.#report({ severity: 'error', check, where, what: message, todo, code });
  }

  #explainManifestError(code: ErrorCode, version: string): [check: string, todo: string] {
    if (code === 'NOT_FOUND') return ['version-absent', this.#remedies.publishAgain(version)];
    if (code === 'DENIED') return ['unsigned', this.#remedies.sign(version)];
    const todo = this.#orRestoreAccess(code, this.#remedies.restoreManifest(version));
    return ['manifest-damaged', todo];
  }

  #orRestoreAccess(code: ErrorCode, todo: string): string {
    return code === 'UNAVAILABLE' ? this.#remedies.restoreAccess : todo;
  }
}
