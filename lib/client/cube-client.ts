/** Sharded, version-pinned batch lookup. */
import { CubeError } from '../core/errors.ts';
import type { Fleet } from '../core/fleet.ts';
import type { Manifest } from '../core/manifest.ts';
import type { Logger } from '../platform/logs.ts';
import type { LookupGroup, LookupSummary } from './lookup-group.ts';

export {
  type LookupGroup,
  type LookupSummary,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
} from './lookup-group.ts';

export interface CubeClientOptions {
  /** The fleet of now; a changed object is taken over at the next call (`FleetFile` rereads fleet.json). */
  readonly fleet: () => Fleet;
  readonly logger?: Logger;
}

export class CubeClient {
  constructor(_options: CubeClientOptions) {}

  lookup(
    _manifest: Manifest,
    _groups: readonly LookupGroup[],
    _timeoutMs: number,
  ): Promise<LookupSummary> {
    throw new CubeError('UNSUPPORTED', 'lookup');
  }

  holds(_manifest: Manifest, _timeoutMs: number): Promise<{ held: boolean; missing: string }> {
    throw new CubeError('UNSUPPORTED', 'holds');
  }

  close(): void {}
}
