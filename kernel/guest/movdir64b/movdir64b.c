// SPDX-License-Identifier: GPL-2.0
/*
 * MOVDIR64B for emulated processors that lack it, so that Linux's driver of the DSA loads and submits. For guests of tests only.
 *
 *   movdir64b ── invalid opcode ──► die notifier: decodes it, loads 64 bytes, stores eight times eight ──► next instruction
 *
 * A real MOVDIR64B is one store. Here the eight stores of one processor are not mixed with those of another, by a lock; the device
 * has to join them. Kernel and programs are served; CPUID does not tell programs of it.
 */
#include <linux/io.h>
#include <linux/kdebug.h>
#include <linux/module.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <asm/cpufeature.h>
#include <asm/ptrace.h>
#include <asm/trapnr.h>

#define LONGEST 12

static DEFINE_RAW_SPINLOCK(lock);
/* Whether the capability is this module's doing. */
static bool performs;
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

/* Loads from the memory of whoever executes the instruction; the bytes that are missing. Nothing waits for absent pages. */
static unsigned long load(struct pt_regs *regs, void *to, unsigned long from, unsigned long size)
{
	const void __user *place = (const void __user *)from;
	unsigned long left = size;

	if (!user_mode(regs))
		return copy_from_kernel_nofault(to, (void *)from, size) ? size : 0;
	pagefault_disable();
	if (access_ok(place, size))
		left = __copy_from_user_inatomic(to, place, size);
	pagefault_enable();
	return left;
}

/* Stores to a program's portal whose page is there. */
static bool store_present(u64 __user *to, const u64 *words)
{
	int n;

	pagefault_disable();
	if (!user_access_begin(to, 64)) {
		pagefault_enable();
		return false;
	}
	for (n = 0; n < 8; n++)
		unsafe_put_user(words[n], to + n, absent);
	user_access_end();
	pagefault_enable();
	return true;
absent:
	user_access_end();
	pagefault_enable();
	return false;
}

static bool store(struct pt_regs *regs, unsigned long to, const u64 *words)
{
	u64 __user *place = (u64 __user *)to;
	unsigned long flags;
	bool stored = true;
	int n;

	raw_spin_lock_irqsave(&lock, flags);
	if (user_mode(regs))
		stored = store_present(place, words);
	else
		for (n = 0; n < 8; n++)
			writeq(words[n], (void __iomem *)(to + 8 * n));
	performed += stored;
	raw_spin_unlock_irqrestore(&lock, flags);
	return stored;
}

/*
 * The first store to a portal finds no page: VFIO gives it on demand. The first word is stored by itself, as a program could, and then again
 * with the others: the device begins a line anew with its first word. Waiting is not meant for notifiers; here nothing is waited for.
 */
static bool touch(unsigned long to, u64 word)
{
	bool is_there;

	local_irq_enable();
	is_there = !put_user(word, (u64 __user *)to);
	local_irq_disable();
	return is_there;
}

static int on_die(struct notifier_block *block, unsigned long event, void *data)
{
	struct die_args *args = data;
	struct pt_regs *regs = args->regs;
	unsigned long from, to;
	u8 code[LONGEST] = {};
	u64 words[8];
	int length;

	if (event != DIE_TRAP || args->trapnr != X86_TRAP_UD)
		return NOTIFY_DONE;
	if (user_mode(regs) && !user_64bit_mode(regs))
		return NOTIFY_DONE;
	/* The bytes behind the instruction may be missing. */
	if (load(regs, code, regs->ip, sizeof(code)) == sizeof(code))
		return NOTIFY_DONE;
	length = decode(regs, code, &from, &to);
	if (!length || to & 63 || load(regs, words, from, sizeof(words)))
		return NOTIFY_DONE;
	if (!store(regs, to, words) && !(user_mode(regs) && touch(to, words[0]) && store(regs, to, words)))
		return NOTIFY_DONE;
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
	/* Not by the kernel's movdir64b(): whether that takes a pointer to memory or to a device depends on the version. */
	asm volatile("movdir64b (%1), %0" : : "r"(to), "r"(from) : "memory");
	if (memcmp(from, to, sizeof(from)) || performed != 1) {
		unregister_die_notifier(&block);
		return -EIO;
	}
	/* What the driver asks before it loads. */
	set_cpu_cap(&boot_cpu_data, X86_FEATURE_MOVDIR64B);
	performs = true;
	return 0;
}

static void __exit movdir64b_stop(void)
{
	if (!performs)
		return;
	/* clear_cpu_cap() is not exported. A driver that asks from now on must not load. */
	clear_bit(X86_FEATURE_MOVDIR64B, (unsigned long *)boot_cpu_data.x86_capability);
	unregister_die_notifier(&block);
}

module_init(movdir64b_start);
module_exit(movdir64b_stop);
MODULE_DESCRIPTION("MOVDIR64B for emulated processors without it");
MODULE_LICENSE("GPL");
