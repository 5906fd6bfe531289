#!/usr/bin/env node
/** ctr-client: sends Criteo-format rows to serving and reports speed and quality of the answers. */
import { run } from './cli.ts';

process.exitCode = await run();
