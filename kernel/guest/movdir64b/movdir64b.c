// SPDX-License-Identifier: GPL-2.0
/*
 * MOVDIR64B for emulated processors that lack it, so that Linux's driver of the DSA loads and submits. For guests of tests only.
 *
 *   movdir64b ── invalid opcode ──► die notifier: decodes it, loads 64 bytes, stores eight times eight ──► next instruction
 *
 * A real MOVDIR64B is one store. Here the eight stores of one processor are not mixed with those of another, by a lock; the device
 * has to join them. Only the kernel is served: no work queue can be given to user mode there.
 */
#include <linux/io.h>
#include <linux/kdebug.h>
#include <linux/module.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <asm/cpufeature.h>
#include <asm/special_insns.h>
#include <asm/trapnr.h>

#define LONGEST 12

static DEFINE_RAW_SPINLOCK(lock);
static unsigned long performed;
module_param(performed, ulong, 0444);
MODULE_PARM_DESC(performed, "Instructions that were performed");

static unsigned long reg(struct pt_regs *regs, int number)
{
	const unsigned long *all[16] = {
		&regs->ax, &regs->cx, &regs->dx, &regs->bx, &regs->sp, &regs->bp, &regs->si, &regs->di,
		&regs->r8, &regs->r9, &regs->r10, &regs->r11, &regs->r12, &regs->r13, &regs->r14, &regs->r15,
	};

	return *all[number];
}

/* Decodes 66 [REX] 0F 38 F8 /r with a base register and no index; its length, or 0 if it is something else. */
static int decode(struct pt_regs *regs, const u8 *code, unsigned long *from, unsigned long *to)
{
	const u8 *at = code;
	int rex = 0;
	int mod, base;
	s32 offset = 0;

	if (*at++ != 0x66)
		return 0;
	if ((*at & 0xf0) == 0x40)
		rex = *at++;
	if (at[0] != 0x0f || at[1] != 0x38 || at[2] != 0xf8)
		return 0;
	mod = at[3] >> 6;
	base = at[3] & 7;
	*to = reg(regs, (at[3] >> 3 & 7) | (rex & 4) << 1);
	at += 4;
	if (mod == 3 || (mod == 0 && base == 5))
		return 0;
	if (base == 4) {
		/* A byte follows that may name an index. */
		if ((*at >> 3 & 7) != 4 || (rex & 2) || (mod == 0 && (*at & 7) == 5))
			return 0;
		base = *at++ & 7;
	}
	if (mod == 1)
		offset = (s8)*at++;
	if (mod == 2) {
		memcpy(&offset, at, sizeof(offset));
		at += sizeof(offset);
	}
	*from = reg(regs, base | (rex & 1) << 3) + offset;
	return at - code;
}

static int on_die(struct notifier_block *block, unsigned long event, void *data)
{
	struct die_args *args = data;
	struct pt_regs *regs = args->regs;
	unsigned long from, to, flags;
	u8 code[LONGEST] = {};
	u64 words[8];
	int length;
	int n;

	if (event != DIE_TRAP || args->trapnr != X86_TRAP_UD || user_mode(regs))
		return NOTIFY_DONE;
	if (copy_from_kernel_nofault(code, (void *)regs->ip, sizeof(code)))
		return NOTIFY_DONE;
	length = decode(regs, code, &from, &to);
	if (!length || to & 63 || copy_from_kernel_nofault(words, (void *)from, sizeof(words)))
		return NOTIFY_DONE;
	raw_spin_lock_irqsave(&lock, flags);
	for (n = 0; n < 8; n++)
		writeq(words[n], (void __iomem *)(to + 8 * n));
	performed++;
	raw_spin_unlock_irqrestore(&lock, flags);
	regs->ip += length;
	return NOTIFY_STOP;
}

static struct notifier_block block = { .notifier_call = on_die };

static int __init movdir64b_start(void)
{
	static u64 from[8] __aligned(64) = { 1, 2, 3, 4, 5, 6, 7, 8 };
	static u64 to[8] __aligned(64);
	int error;

	if (boot_cpu_has(X86_FEATURE_MOVDIR64B)) {
		pr_info("the processor has MOVDIR64B; nothing to do\n");
		return 0;
	}
	error = register_die_notifier(&block);
	if (error)
		return error;
	movdir64b(to, from);
	if (memcmp(from, to, sizeof(from)) || performed != 1) {
		unregister_die_notifier(&block);
		return -EIO;
	}
	/* What the driver asks before it loads. */
	set_cpu_cap(&boot_cpu_data, X86_FEATURE_MOVDIR64B);
	return 0;
}

static void __exit movdir64b_stop(void)
{
	unregister_die_notifier(&block);
}

module_init(movdir64b_start);
module_exit(movdir64b_stop);
MODULE_DESCRIPTION("MOVDIR64B for emulated processors without it");
MODULE_LICENSE("GPL");
