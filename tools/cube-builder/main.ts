#!/usr/bin/env node
/** The cube-builder command. */
import { endWithOwner } from '../../lib/platform/finite-process.ts';
import { run } from './cli.ts';

endWithOwner();
process.exitCode = await run();
